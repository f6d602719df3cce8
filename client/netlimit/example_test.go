package netlimit_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strings"

	"github.com/sluice-project/sluice/client"
	"github.com/sluice-project/sluice/client/netlimit"
)

// all admits everything; it stands in for a *client.Client.
type all struct{}

func (all) Check(context.Context, client.Check) (client.Decision, error) {
	return client.Decision{Allowed: true}, nil
}

func (a all) Wait(ctx context.Context, c client.Check) (client.Decision, error) {
	return a.Check(ctx, c)
}

func ExampleListen() {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	l, err := netlimit.Listen(tcp, netlimit.Config{Checker: all{}, Domain: "edge"})
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go net.Dial("tcp", l.Addr().String())
	c, err := l.Accept()
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	fmt.Println("accepted")
	// Output: accepted
}

func ExampleNewReader() {
	upload := netlimit.NewReader(context.Background(), strings.NewReader("an upload\n"), netlimit.Bytes{
		Waiter: all{}, Domain: "uploads", Descriptor: []client.Entry{client.KV("tenant", "acme")},
	})
	if _, err := io.Copy(os.Stdout, upload); err != nil {
		log.Fatal(err)
	}
	// Output: an upload
}

func ExampleNewWriter() {
	download := netlimit.NewWriter(context.Background(), os.Stdout, netlimit.Bytes{
		Waiter: all{}, Domain: "downloads", Descriptor: []client.Entry{client.KV("tenant", "acme")},
	})
	fmt.Fprintln(download, "a download")
	// Output: a download
}
