// Command cronticks answers as CronJob would, by its library: each line of
// stdin is a JSON object {"expression", "zone", "after", "count"}, `after` in
// seconds since the epoch; for each it prints a line, a JSON object with the
// next `count` ticks in `ticks`, or with `error` for what is no schedule. Where
// no tick comes within the library's five years there are fewer.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"time"
	_ "time/tzdata"

	"github.com/robfig/cron/v3"
)

type question struct {
	Expression string `json:"expression"`
	Zone       string `json:"zone"`
	After      int64  `json:"after"`
	Count      int    `json:"count"`
}

type answer struct {
	Ticks []int64 `json:"ticks"`
	Error string  `json:"error,omitempty"`
}

func main() {
	lines, out := bufio.NewScanner(os.Stdin), bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(out)
	for lines.Scan() {
		var asked question
		err := json.Unmarshal(lines.Bytes(), &asked)
		if err == nil {
			err = encoder.Encode(ask(asked))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	out.Flush()
}

func ask(asked question) answer {
	zone, err := time.LoadLocation(asked.Zone)
	if err != nil {
		return refused(err)
	}
	schedule, err := cron.ParseStandard(asked.Expression)
	if err != nil {
		return refused(err)
	}
	found, at := answer{Ticks: []int64{}}, time.Unix(asked.After, 0).In(zone)
	for range asked.Count {
		if at = schedule.Next(at); at.IsZero() {
			break
		}
		found.Ticks = append(found.Ticks, at.Unix())
	}
	return found
}

func refused(err error) answer {
	return answer{Ticks: []int64{}, Error: err.Error()}
}
