// Command fluxtypes reads YAML documents from stdin and decodes each into
// Flux's own type of its kind. A kind that it does not know, a field that the
// type lacks or a value of the wrong type ends it with an error; else it
// prints how many documents there were.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	helm "github.com/fluxcd/helm-controller/api/v2"
	kustomize "github.com/fluxcd/kustomize-controller/api/v1"
	source "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
)

func main() {
	count, err := check(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(count)
}

func check(in io.Reader) (int, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{helm.AddToScheme, kustomize.AddToScheme, source.AddToScheme} {
		if err := add(scheme); err != nil {
			return 0, err
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	documents := yaml.NewYAMLOrJSONDecoder(in, 4096)
	for count := 0; ; count++ {
		var raw runtime.RawExtension
		if err := documents.Decode(&raw); errors.Is(err, io.EOF) {
			return count, nil
		} else if err != nil {
			return count, err
		}
		if _, _, err := decoder.Decode(raw.Raw, nil, nil); err != nil {
			return count, fmt.Errorf("document %d: %w", count+1, err)
		}
	}
}
