// Command kstatus reads Kubernetes objects from stdin, one JSON document after
// another, and prints for each a line of JSON: the status and the message that
// kstatus computes. The package is the one that Flux and Helm 4 link.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

type line struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	objects, lines := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var raw json.RawMessage
		if err := objects.Decode(&raw); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		// Its own decoder makes integers of numbers, as kstatus wants generations to be.
		var object unstructured.Unstructured
		if err := object.UnmarshalJSON(raw); err != nil {
			return err
		}
		result, err := status.Compute(&object)
		if err != nil {
			return err
		}
		if err := lines.Encode(line{string(result.Status), result.Message}); err != nil {
			return err
		}
	}
}
