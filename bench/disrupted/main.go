// Disruption connects many viewers, cuts each of them again and again, and reports what they got.
//
// It says {"ready":n} when all follow, begins to cut at a line on its input, and reports at the next one, which
// has the number of messages that were published. A message has n, counted from 1, and sent, its time in
// microseconds since 1970.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

type report struct {
	Delivered    int64   `json:"delivered"`
	Missing      int64   `json:"missing"`
	Doubled      int64   `json:"doubled"`
	Disordered   int64   `json:"disordered"`
	Cuts         int64   `json:"cuts"`
	Failures     int64   `json:"failures"`
	Unrecovered  int64   `json:"unrecovered"`
	Replayed     int     `json:"replayed"`
	ReplayP50Ms  float64 `json:"replay_p50_ms"`
	ReplayP99Ms  float64 `json:"replay_p99_ms"`
	LiveP50Ms    float64 `json:"live_p50_ms"`
	LiveP99Ms    float64 `json:"live_p99_ms"`
	LastReplayMs float64 `json:"replay_max_ms"`
}

// A tally is what one viewer got.
type tally struct {
	mutex                                sync.Mutex
	last, delivered, doubled, disordered int64
	cuts, failures, unrecovered          int64
	replays, live                        []float64
	seen                                 map[int64]bool
	backAt                               time.Time // when it might come back; what was sent before is replayed
}

// take notes one message; sent is when it was published.
func (t *tally) take(n int64, sent time.Time) {
	now := time.Now()
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.seen[n] {
		t.doubled++
		return
	}
	t.seen[n] = true
	if n < t.last {
		t.disordered++
	}
	t.last = max(t.last, n)
	t.delivered++
	if sent.Before(t.backAt) {
		t.replays = append(t.replays, milliseconds(now.Sub(t.backAt)))
	} else {
		t.live = append(t.live, milliseconds(now.Sub(sent)))
	}
}

func main() {
	kind := flag.String("kind", "broker", "broker or centrifugo")
	url := flag.String("url", "", "of the WebSocket")
	topic := flag.String("topic", "bench", "program or channel")
	clients := flag.Int("clients", 10_000, "")
	every := flag.Duration("every", 15*time.Second, "between two cuts of a viewer, about")
	away := flag.Duration("away", 2*time.Second, "")
	patience := flag.Duration("patience", 60*time.Second, "for what is missing at the end")
	flag.Parse()
	ctx, cancel := context.WithCancel(context.Background())
	var ready, done sync.WaitGroup
	cutting := make(chan struct{})
	tallies := make([]*tally, *clients)
	for i := range tallies {
		tallies[i] = &tally{seen: map[int64]bool{}}
		ready.Add(1)
		done.Add(1)
		// From many addresses of the loopback network: a cut connection keeps its port for a minute, and the kernel
		// searches long for a free one where most are taken.
		source := fmt.Sprintf("127.0.0.%d", 2+i/500)
		go func() {
			defer done.Done()
			viewer := &viewer{kind: *kind, url: *url, topic: *topic, source: source, tally: tallies[i]}
			viewer.live(ctx, ready.Done, cutting, *every, *away)
		}()
	}
	ready.Wait()
	fmt.Printf("{\"ready\":%d}\n", *clients)
	input := bufio.NewScanner(os.Stdin)
	input.Scan()
	close(cutting)
	if !input.Scan() {
		os.Exit(1)
	}
	published, err := strconv.ParseInt(strings.TrimSpace(input.Text()), 10, 64)
	if err != nil {
		panic(err)
	}
	for deadline := time.Now().Add(*patience); time.Now().Before(deadline) && !all(tallies, published); {
		time.Sleep(50 * time.Millisecond)
	}
	told, _ := json.Marshal(join(tallies, published))
	fmt.Printf("%s\n", told)
	cancel()
	done.Wait()
}

func all(tallies []*tally, published int64) bool {
	for _, each := range tallies {
		each.mutex.Lock()
		delivered := each.delivered
		each.mutex.Unlock()
		if delivered < published {
			return false
		}
	}
	return true
}

func join(tallies []*tally, published int64) report {
	var told report
	var replays, live []float64
	for _, each := range tallies {
		each.mutex.Lock()
		told.Delivered += each.delivered
		told.Missing += published - each.delivered
		told.Doubled += each.doubled
		told.Disordered += each.disordered
		told.Cuts += each.cuts
		told.Failures += each.failures
		told.Unrecovered += each.unrecovered
		replays, live = append(replays, each.replays...), append(live, each.live...)
		each.mutex.Unlock()
	}
	slices.Sort(replays)
	slices.Sort(live)
	told.Replayed = len(replays)
	told.ReplayP50Ms, told.ReplayP99Ms = share(replays, 0.5), share(replays, 0.99)
	told.LastReplayMs = share(replays, 1)
	told.LiveP50Ms, told.LiveP99Ms = share(live, 0.5), share(live, 0.99)
	return told
}

func share(sorted []float64, of float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(of*float64(len(sorted))))]
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// spread is about d: as likely shorter as longer, by up to a third.
func spread(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (2.0/3 + rand.Float64()*2/3))
}
