// What applications in Go do with a cluster, through the two clients that most of them use. One scenario a run:
//
//	interop BOOTSTRAP NAME
//
// ends with 0, or says on standard error what was not as it should be. `interop list` prints the names.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

const timeout = 60 * time.Second

type scenario func(ctx context.Context, bootstrap []string, topic string) error

var scenarios = map[string]scenario{
	"franz-codecs":        franzCodecs,
	"franz-group":         franzGroup(false),
	"franz-group-848":     franzGroup(true),
	"franz-share":         franzShare,
	"franz-transactions":  franzTransactions,
	"franz-exactly-once":  franzExactlyOnce,
	"franz-admin":         franzAdmin,
	"sarama-codecs":       saramaCodecs,
	"sarama-group":        saramaGroup,
	"sarama-transactions": saramaTransactions,
	"sarama-admin":        saramaAdmin,
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "list" {
		names := make([]string, 0, len(scenarios))
		for name := range scenarios {
			names = append(names, name)
		}
		slices.Sort(names)
		fmt.Println(strings.Join(names, "\n"))
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	bootstrap, name := strings.Split(os.Args[1], ","), os.Args[2]
	topic := fmt.Sprintf("go-%s-%d", name, time.Now().UnixNano())
	if err := scenarios[name](ctx, bootstrap, topic); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// expect compares what was read with what was written, order aside.
func expect(what string, got, want []string) error {
	got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
	for i := range want {
		if i == len(got) || got[i] != want[i] {
			return fmt.Errorf("%s: read %d values, expected %d; the first to differ is %.40q", what, len(got), len(want), want[i])
		}
	}
	if len(got) > len(want) {
		return fmt.Errorf("%s: read %d values, expected %d", what, len(got), len(want))
	}
	return nil
}

func values(prefix string, count int) []string {
	made := make([]string, count)
	for i := range made {
		made[i] = fmt.Sprintf("%s-%d-%s", prefix, i, strings.Repeat("x", 100))
	}
	return made
}
