// Command podtypes prints how Go reads a PodTemplateSpec, by Kubernetes' own
// types: the name of each struct and, indented, its fields, each with the code
// of its type. It is the text of operator/caretaker/api/podtypes.py.
package main

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Types whose JSON is not that of their fields.
var opaque = map[reflect.Type]string{
	reflect.TypeFor[resource.Quantity]():  "quantity",
	reflect.TypeFor[intstr.IntOrString](): "any",
	reflect.TypeFor[metav1.Time]():        "any",
	reflect.TypeFor[metav1.FieldsV1]():    "any",
}

const width = 100

func main() {
	structs := map[string]map[string]string{}
	add(structs, reflect.TypeFor[corev1.PodTemplateSpec]())
	for _, name := range slices.Sorted(maps.Keys(structs)) {
		fmt.Println(name)
		line := ""
		for _, field := range slices.Sorted(maps.Keys(structs[name])) {
			next := " " + field + ":" + structs[name][field]
			if len(line)+len(next) > width {
				fmt.Println(line)
				line = ""
			}
			line += next
		}
		if line != "" {
			fmt.Println(line)
		}
	}
}

func add(structs map[string]map[string]string, t reflect.Type) {
	if _, known := structs[t.Name()]; known {
		return
	}
	fields := map[string]string{}
	structs[t.Name()] = fields
	collect(structs, fields, t)
}

func collect(structs map[string]map[string]string, fields map[string]string, t reflect.Type) {
	for i := range t.NumField() {
		field := t.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" && field.Anonymous {
			collect(structs, fields, field.Type)
		} else if name != "-" && name != "" {
			fields[name] = code(structs, field.Type)
		}
	}
}

// code is one of str, bool, num, quantity, any, the name of a struct; with *
// before it for a pointer, [] for a list, {} for a map.
func code(structs map[string]map[string]string, t reflect.Type) string {
	if found, known := opaque[t]; known {
		return found
	}
	switch t.Kind() {
	case reflect.Pointer:
		return "*" + code(structs, t.Elem())
	case reflect.Slice:
		return "[]" + code(structs, t.Elem())
	case reflect.Map:
		return "{}" + code(structs, t.Elem())
	case reflect.Struct:
		add(structs, t)
		return t.Name()
	case reflect.String:
		return "str"
	case reflect.Bool:
		return "bool"
	case reflect.Int, reflect.Int32, reflect.Int64:
		return "num"
	}
	return "any"
}
