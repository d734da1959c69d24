// Command imagor is imagor's server with its processor libvips and nothing of the clouds.
package main

import (
	"os"

	"github.com/cshum/imagor/config"
	"github.com/cshum/imagor/config/vipsconfig"
)

func main() {
	if server := config.CreateServer(os.Args[1:], vipsconfig.WithVips); server != nil {
		server.Run()
	}
}
