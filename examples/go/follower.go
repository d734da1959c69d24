package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"
)

// The numbers are those of docs/protocol.md: sections 10, 11 and 14.
const (
	firstDelay  = 250 * time.Millisecond
	longest     = 15 * time.Second
	stableAfter = 10 * time.Second
	silence     = 40 * time.Second
	readLimit   = 17 << 20
	askTimeout  = 5 * time.Second
	buffered    = 1024
)

// A Position is where a viewer stands in a program: it has everything up to and including Seq of Epoch.
type Position struct {
	Epoch string `json:"epoch"`
	Seq   int64  `json:"seq"`
	ID    string `json:"id,omitempty"`
}

// A Change is what a program tells, once and in order. Method is event, eventUpdated or eventDeleted, or
// "events" where the history is another one: Params is then the array of all events that there are.
type Change struct {
	Position
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
}

// A Follower follows one program over any number of connections.
type Follower struct {
	Base     string // of the HTTP API, such as http://demo.localhost:8000
	Program  string
	User     string // empty follows anonymously
	Password string
	Since    *Position // nil begins with what comes next
	Handle   func(Change)

	client   *http.Client
	gateways []string // as /connect named them last, the first one first
	avoid    string   // the gateway that was lost
}

// errMoved says that a gateway has stopped after it had said so: connect again at once.
var errMoved = errors.New("the gateway stops")

// A fatal error is one that another connection would not mend.
type fatal struct{ error }

// A rested error names how long to wait at least.
type rested struct {
	error
	after time.Duration
}

// Follow hands everything that happens to Handle, until ctx ends or the subscription cannot go on.
func (f *Follower) Follow(ctx context.Context) error {
	f.client = &http.Client{Transport: &http.Transport{DialContext: dial}}
	delay := firstDelay
	for {
		began := time.Now()
		err := f.connection(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var final fatal
		if errors.As(err, &final) {
			return final.error
		}
		log.Printf("connection: %v", err)
		if errors.Is(err, errMoved) {
			continue
		}
		if time.Since(began) >= stableAfter {
			delay = firstDelay
		}
		wait := rand.N(delay)
		var told rested
		if errors.As(err, &told) {
			wait = max(wait, told.after)
		}
		delay = min(2*delay, longest)
		if !sleep(ctx, wait) {
			return ctx.Err()
		}
	}
}

// connection is the life of one: it ends with the reason.
func (f *Follower) connection(ctx context.Context) error {
	gateway, err := f.findGateway(ctx)
	if err != nil {
		return err
	}
	f.avoid = gateway
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// Nothing, not even a ping, for so long means that the other side is gone.
	watch := time.AfterFunc(silence, func() { cancel(errors.New("the gateway is silent")) })
	defer watch.Stop()
	socket, answer, err := websocket.Dial(ctx, gateway, &websocket.DialOptions{
		HTTPClient:      f.client,
		CompressionMode: websocket.CompressionNoContextTakeover,
		OnPingReceived:  func(context.Context, []byte) bool { watch.Reset(silence); return true },
	})
	if err != nil {
		return refused(answer, err)
	}
	defer socket.CloseNow()
	socket.SetReadLimit(readLimit)
	s := &session{follower: f, socket: socket, messages: make(chan message, buffered)}
	go s.read(ctx, cancel, watch)
	if err := s.run(ctx); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// findGateway asks the API for gateways, and falls back on those that it knows.
func (f *Follower) findGateway(ctx context.Context) (string, error) {
	var told struct {
		URL     string `json:"url"`
		Servers []struct {
			URL string `json:"url"`
		} `json:"servers"`
		RetryAfterMs int64 `json:"retryAfterMs"`
	}
	err := f.get(ctx, "/api/v1/connect?programId="+url.QueryEscape(f.Program), "", &told)
	switch {
	case err == nil:
		f.gateways = []string{told.URL}
		for _, server := range told.Servers {
			f.gateways = append(f.gateways, server.URL)
		}
		if !sleep(ctx, time.Duration(told.RetryAfterMs)*time.Millisecond) {
			return "", ctx.Err()
		}
	case len(f.gateways) == 0:
		return "", err
	}
	for _, gateway := range f.gateways {
		if gateway != f.avoid {
			return gateway, nil
		}
	}
	return f.gateways[0], nil
}

// get reads JSON of the HTTP API.
func (f *Follower) get(ctx context.Context, path, token string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.Base+path, nil)
	if err != nil {
		return fatal{err}
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := f.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return refused(answer, fmt.Errorf("GET %s: %s", path, answer.Status))
	}
	return json.NewDecoder(answer.Body).Decode(into)
}

// refused is the error of an HTTP answer that is none of what was asked for: worth another try, or not.
func refused(answer *http.Response, err error) error {
	if answer == nil {
		return err
	}
	switch status := answer.StatusCode; {
	case status == http.StatusTooManyRequests || status >= 500:
		seconds, _ := strconv.Atoi(answer.Header.Get("Retry-After"))
		return rested{err, time.Duration(seconds) * time.Second}
	case status >= 400:
		return fatal{err}
	}
	return err
}

// dial knows that names below localhost are this machine (RFC 6761), which not every resolver does.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	if host, port, err := net.SplitHostPort(address); err == nil && strings.HasSuffix(host, ".localhost") {
		address = net.JoinHostPort("127.0.0.1", port)
	}
	return (&net.Dialer{}).DialContext(ctx, network, address)
}

func sleep(ctx context.Context, wait time.Duration) bool {
	select {
	case <-time.After(wait):
		return true
	case <-ctx.Done():
		return false
	}
}

// ended reads a close code: whether to come back, or whose fault it was.
func ended(err error) error {
	atFault := []websocket.StatusCode{1002, 1003, 1007, 1008, 1009}
	if slices.Contains(atFault, websocket.CloseStatus(err)) {
		return fatal{err}
	}
	return err
}

func encode(value any) []byte {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		panic(err) // our own values can be encoded
	}
	return bytes.TrimSpace(text.Bytes())
}
