package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/coder/websocket"
)

// A viewer follows one topic over any number of connections, each of which is cut.
type viewer struct {
	kind, url, topic, source string
	tally                    *tally
	epoch                    string
	position                 int64
	follows                  bool // it has a position
}

// What both servers send, as far as it matters.
type frame struct {
	ID     int `json:"id"`
	Params struct {
		Seq      int64  `json:"seq"`
		ID       string `json:"id"`
		Metadata data   `json:"metadata"`
	} `json:"params"`
	Method string `json:"method"`
	Result *struct {
		Epoch     string `json:"epoch"`
		Seq       int64  `json:"seq"`
		ID        string `json:"id"`
		Recovered bool   `json:"recovered"`
		Events    []struct {
			Seq      int64  `json:"seq"`
			ID       string `json:"id"`
			Metadata data   `json:"metadata"`
		} `json:"events"`
	} `json:"result"`
	Error     json.RawMessage `json:"error"`
	Connect   *struct{}       `json:"connect"`
	Subscribe *struct {
		Epoch        string        `json:"epoch"`
		Offset       int64         `json:"offset"`
		Recovered    bool          `json:"recovered"`
		Publications []publication `json:"publications"`
	} `json:"subscribe"`
	Push *struct {
		Pub *publication `json:"pub"`
	} `json:"push"`
}

type publication struct {
	Offset int64 `json:"offset"`
	Data   data  `json:"data"`
}

type data struct {
	N    int64 `json:"n"`
	Sent int64 `json:"sent"`
}

// live follows until ctx ends; after cutting is closed, a connection lives for about every and is away for away.
func (v *viewer) live(ctx context.Context, ready func(), cutting <-chan struct{}, every, away time.Duration) {
	isReady := false
	for ctx.Err() == nil {
		connection, cancel := context.WithCancel(ctx)
		err := v.connection(connection, func() {
			if !isReady {
				isReady = true
				ready()
			}
			go func() {
				select {
				case <-cutting:
				case <-connection.Done():
					return
				}
				select {
				case <-time.After(spread(every)):
					cancel() // and the socket is gone, without a word
				case <-connection.Done():
				}
			}()
		})
		wasCut := connection.Err() != nil
		cancel()
		if ctx.Err() != nil {
			return
		}
		v.tally.mutex.Lock()
		if wasCut {
			v.tally.cuts++
		} else if err != nil {
			v.tally.failures++
		}
		v.tally.mutex.Unlock()
		if wasCut {
			time.Sleep(away)
			v.tally.mutex.Lock()
			v.tally.backAt = time.Now()
			v.tally.mutex.Unlock()
		} else {
			time.Sleep(spread(200 * time.Millisecond))
		}
	}
}

func (v *viewer) connection(ctx context.Context, subscribed func()) error {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(v.source)}}
	transport := &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}
	socket, _, err := websocket.Dial(ctx, v.url, &websocket.DialOptions{HTTPClient: &http.Client{Transport: transport}})
	if err != nil {
		return err
	}
	defer socket.CloseNow()
	socket.SetReadLimit(1 << 24)
	if err := v.ask(ctx, socket); err != nil {
		return err
	}
	for {
		_, text, err := socket.Read(ctx)
		if err != nil {
			return err
		}
		// Centrifugo sends several replies in one frame, one a line; `{}` is its ping.
		for _, line := range bytes.Split(bytes.TrimSpace(text), []byte("\n")) {
			if string(line) == "{}" {
				if err := socket.Write(ctx, websocket.MessageText, line); err != nil {
					return err
				}
				continue
			}
			var came frame
			if err := json.Unmarshal(line, &came); err != nil {
				return err
			}
			if err := v.take(&came, subscribed); err != nil {
				return err
			}
		}
	}
}

// ask connects, where that is a message, and subscribes from where it was.
func (v *viewer) ask(ctx context.Context, socket *websocket.Conn) error {
	var call any
	if v.kind == "broker" {
		params := map[string]any{"programId": v.topic}
		if v.follows {
			params["since"] = map[string]any{"epoch": v.epoch, "seq": v.position}
		}
		call = map[string]any{"jsonrpc": "2.0", "id": 2, "method": "subscribe", "params": params}
	} else {
		if err := send(ctx, socket, map[string]any{"id": 1, "connect": map[string]any{}}); err != nil {
			return err
		}
		params := map[string]any{"channel": v.topic, "recoverable": true}
		if v.follows {
			params["recover"], params["epoch"], params["offset"] = true, v.epoch, v.position
		}
		call = map[string]any{"id": 2, "subscribe": params}
	}
	return send(ctx, socket, call)
}

func send(ctx context.Context, socket *websocket.Conn, message any) error {
	text, err := json.Marshal(message)
	if err != nil {
		return err
	}
	return socket.Write(ctx, websocket.MessageText, text)
}

func (v *viewer) take(came *frame, subscribed func()) error {
	switch {
	case len(came.Error) > 0:
		return errors.New(string(came.Error))
	case came.Method == "event":
		v.move(came.Params.Seq, came.Params.Metadata)
	case came.Push != nil && came.Push.Pub != nil:
		v.move(came.Push.Pub.Offset, came.Push.Pub.Data)
	case came.Result != nil:
		v.begin(came.Result.Epoch, came.Result.Recovered, subscribed)
		for _, event := range came.Result.Events {
			v.move(event.Seq, event.Metadata)
		}
		v.position = max(v.position, came.Result.Seq)
	case came.Subscribe != nil:
		v.begin(came.Subscribe.Epoch, came.Subscribe.Recovered, subscribed)
		for _, each := range came.Subscribe.Publications {
			v.move(each.Offset, each.Data)
		}
		v.position = max(v.position, came.Subscribe.Offset)
	}
	return nil
}

func (v *viewer) begin(epoch string, recovered bool, subscribed func()) {
	if v.follows && !recovered {
		v.tally.mutex.Lock()
		v.tally.unrecovered++
		v.tally.mutex.Unlock()
	}
	v.epoch, v.follows = epoch, true
	subscribed()
}

func (v *viewer) move(position int64, came data) {
	v.position = position
	v.tally.take(came.N, time.UnixMicro(came.Sent))
}
