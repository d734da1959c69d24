// Follow prints what happens in a program of the broker, each thing once and in order, whatever happens to the
// connection. It was written from docs/protocol.md alone.
//
//	go run . http://demo.localhost:8000 final-2026
//	BROKER_USER=user BROKER_PASSWORD=… go run . http://demo.localhost:8000 final-2026
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
)

func main() {
	log.SetFlags(log.Ltime)
	if len(os.Args) != 3 {
		log.Fatalf("usage: %s URL PROGRAM", os.Args[0])
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	out := bufio.NewWriter(os.Stdout)
	follower := &Follower{
		Base:     os.Args[1],
		Program:  os.Args[2],
		User:     os.Getenv("BROKER_USER"),
		Password: os.Getenv("BROKER_PASSWORD"),
		Handle: func(change Change) {
			fmt.Fprintf(out, "%s\n", encode(change))
			out.Flush()
		},
	}
	if err := follower.Follow(ctx); !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}
