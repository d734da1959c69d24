package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/url"
	"time"

	"github.com/coder/websocket"
)

// A session is what one connection has to say, and where it stands.
type session struct {
	follower *Follower
	socket   *websocket.Conn
	messages chan message
	lastID   int
	token    string
	pending  []message // what came while an answer was awaited
	moveAt   <-chan time.Time
}

// A message is anything that a gateway sends: a notification has a method, an answer an id.
type message struct {
	ID     *int            `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
		Data    struct {
			Description string `json:"error_description"`
			Status      int    `json:"status"`
			RetryAfter  int    `json:"retryAfter"`
		} `json:"data"`
	} `json:"error"`
}

// A push is a numbered message of a program; Method is there in the answer to subscribe only.
type push struct {
	Position
	Method    string `json:"method"`
	ProgramID string `json:"programId"`
	Reason    string `json:"reason"`
}

// read goes on reading while a message is handled, so that pings are answered.
func (s *session) read(ctx context.Context, cancel context.CancelCauseFunc, watch *time.Timer) {
	defer close(s.messages)
	for {
		_, text, err := s.socket.Read(ctx)
		if err != nil {
			cancel(ended(err))
			return
		}
		watch.Reset(silence)
		var came message
		if err := json.Unmarshal(text, &came); err != nil {
			cancel(err)
			return
		}
		select {
		case s.messages <- came:
		case <-ctx.Done():
			return
		}
	}
}

// run logs in, subscribes and handles what comes, until the connection ends (nil) or has to be given up.
func (s *session) run(ctx context.Context) error {
	if s.follower.User != "" {
		if err := s.login(ctx); err != nil {
			return err
		}
	}
	if err := s.subscribe(ctx); err != nil {
		return err
	}
	for {
		came, ok := s.next()
		if !ok {
			if s.moveAt == nil {
				return nil
			}
			<-s.moveAt // the gateway has named the time at which to come
			return errMoved
		}
		if err := s.handle(ctx, came); err != nil {
			return err
		}
	}
}

func (s *session) next() (message, bool) {
	if len(s.pending) > 0 {
		came := s.pending[0]
		s.pending = s.pending[1:]
		return came, true
	}
	came, ok := <-s.messages
	return came, ok
}

// call sends a request and waits for its answer; what comes meanwhile is kept for its turn.
func (s *session) call(ctx context.Context, method string, params, into any) error {
	s.lastID++
	request := map[string]any{"jsonrpc": "2.0", "id": s.lastID, "method": method, "params": params}
	if err := s.socket.Write(ctx, websocket.MessageText, encode(request)); err != nil {
		return err
	}
	for came := range s.messages {
		if came.ID == nil || *came.ID != s.lastID {
			s.pending = append(s.pending, came)
			continue
		}
		if came.Error == nil {
			return json.Unmarshal(came.Result, into)
		}
		err := fmt.Errorf("%s: %s: %s", method, came.Error.Message, came.Error.Data.Description)
		if came.Error.Data.Status == 429 || came.Error.Data.Status >= 500 {
			return rested{err, time.Duration(came.Error.Data.RetryAfter) * time.Second}
		}
		return fatal{err}
	}
	return context.Cause(ctx)
}

func (s *session) login(ctx context.Context) error {
	var told struct {
		Token string `json:"access_token"`
	}
	err := s.call(ctx, "login", map[string]string{
		"grant_type": "password", "client_id": "WebProducerDashboard",
		"username": s.follower.User, "password": s.follower.Password,
	}, &told)
	s.token = told.Token
	return err
}

// subscribe begins where the last connection ended.
func (s *session) subscribe(ctx context.Context) error {
	f := s.follower
	params := map[string]any{"programId": f.Program}
	if f.Since != nil {
		params["since"] = f.Since
	}
	var told struct {
		Position
		Recovered bool              `json:"recovered"`
		Events    []json.RawMessage `json:"events"`
	}
	if err := s.call(ctx, "subscribe", params, &told); err != nil {
		return err
	}
	if f.Since != nil && !told.Recovered {
		return s.begin(ctx, told.Position)
	}
	if f.Since == nil {
		f.Since = &told.Position
		return nil
	}
	for _, item := range told.Events {
		if err := s.take(item, ""); err != nil {
			return err
		}
	}
	if f.Since.Epoch != told.Epoch || f.Since.Seq != told.Seq {
		return fmt.Errorf("recovery ended at %v, not at %v", *f.Since, told.Position)
	}
	return nil
}

func (s *session) handle(ctx context.Context, came message) error {
	switch came.Method {
	case "event", "eventUpdated", "eventDeleted":
		return s.take(came.Params, came.Method)
	case "historyReplaced", "eventsDeleted":
		var told push
		if err := json.Unmarshal(came.Params, &told); err != nil {
			return err
		}
		if now := s.follower.Since; told.Epoch == now.Epoch && told.Seq <= now.Seq {
			return nil // a repeat
		}
		return s.begin(ctx, told.Position)
	case "programDeleted", "unsubscribed":
		return fatal{fmt.Errorf("%s: %s", came.Method, came.Params)}
	case "tokenExpiring":
		return s.login(ctx)
	case "reconnect":
		var told struct {
			AfterMs int64 `json:"afterMs"`
		}
		if err := json.Unmarshal(came.Params, &told); err != nil {
			return err
		}
		s.moveAt = time.After(time.Duration(told.AfterMs) * time.Millisecond)
	}
	return nil // what a later version adds
}

// take handles a numbered message by the three rules of section 5.
func (s *session) take(params json.RawMessage, method string) error {
	var came push
	if err := json.Unmarshal(params, &came); err != nil {
		return err
	}
	if method == "" { // within the answer to subscribe
		if method = came.Method; method == "" {
			method = "event"
		}
	}
	now := s.follower.Since
	switch {
	case came.Epoch == now.Epoch && came.Seq == now.Seq+1:
		s.follower.Since = &came.Position
		s.follower.Handle(Change{came.Position, method, params})
		return nil
	case came.Epoch == now.Epoch && came.Seq <= now.Seq:
		return nil
	}
	return fmt.Errorf("%v came after %v", came.Position, *now)
}

// begin starts anew at a position of another history: all events are read by HTTP.
func (s *session) begin(ctx context.Context, at Position) error {
	log.Printf("the history is another one; reading it from %v", at)
	var events json.RawMessage
	path := "/api/v1/programs/" + url.PathEscape(s.follower.Program) + "/events"
	if err := s.follower.get(ctx, path, s.token, &events); err != nil {
		return err
	}
	s.follower.Since = &at
	s.follower.Handle(Change{at, "events", events})
	return nil
}
