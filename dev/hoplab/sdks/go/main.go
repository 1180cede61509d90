// A client of the hop-limit lab: for every line on stdin it resolves credentials afresh, as any
// program on an instance would, and prints how long that took as one line of JSON. It prints "{}" when
// it is ready. It ends with stdin, so that it cannot outlive the lab, and never prints a credential.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/config"
)

type answer struct {
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error"`
}

func resolve(ctx context.Context) error {
	loaded, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return err
	}
	_, err = loaded.Credentials.Retrieve(ctx)
	return err
}

func main() {
	out := json.NewEncoder(os.Stdout)
	_ = out.Encode(struct{}{})
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		started := time.Now()
		found := answer{}
		if err := resolve(context.Background()); err != nil {
			found.Error = err.Error()
		}
		found.Seconds = time.Since(started).Seconds()
		_ = out.Encode(found)
	}
}
