package netlimit_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strings"

	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/client/netlimit"
)

// one admits one check, in the place of a *sluice.Client.
type one struct {
	limit.Limiter
	spent bool
}

func (o *one) Check(context.Context, limit.Check) (limit.Decision, error) {
	d := limit.Decision{Allowed: !o.spent, Verdict: limit.VerdictNever}
	o.spent = true
	return d, nil
}

// client returns a *sluice.Client in a program.
func client() limit.Limiter { return &one{} }

func listen() net.Listener {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	return tcp
}

// read prints what a new connection to l reads.
func read(l net.Listener) {
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	text, _ := io.ReadAll(c)
	fmt.Println(string(text))
}

func ExampleNewListener() {
	l := netlimit.NewListener(client(), listen(), netlimit.Config{
		Domain: "edge",
		Keys:   []netlimit.Key{netlimit.IP()},
		Denied: func(c net.Conn, _ limit.Decision) { fmt.Fprint(c, "421 too many connections") },
	})
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, "220 hello")
			c.Close()
		}
	}()
	read(l)
	read(l)
	// Output:
	// 220 hello
	// 421 too many connections
}

func ExampleListener() {
	var l net.Listener = netlimit.NewListener(client(), listen(), netlimit.Config{Domain: "edge", Keys: []netlimit.Key{netlimit.IP()}})
	l.Close()
	_, err := l.Accept()
	fmt.Println(err)
	// Output: use of closed network connection
}

func ExampleConfig_Validate() {
	c := netlimit.Config{Domain: "edge"} // from a configuration file
	fmt.Println(c.Validate())
	// Output: netlimit: Keys is empty; want at least one
}

func ExampleNewReader() {
	upload := netlimit.NewReader(context.Background(), strings.NewReader("an upload\n"), netlimit.Bytes{
		Key: limit.NewKey(client(), "uploads", "tenant", "acme"),
	})
	if _, err := io.Copy(os.Stdout, upload); err != nil {
		log.Fatal(err)
	}
	// Output: an upload
}

func ExampleNewWriter() {
	download := netlimit.NewWriter(context.Background(), os.Stdout, netlimit.Bytes{
		Key: limit.NewKey(client(), "downloads", "tenant", "acme"),
	})
	fmt.Fprintln(download, "a download")
	// Output: a download
}

// Smaller chunks are smoother.
func ExampleBytes() {
	b := netlimit.Bytes{Key: limit.NewKey(client(), "downloads", "tenant", "acme"), Chunk: 1}
	n, err := netlimit.NewWriter(context.Background(), io.Discard, b).Write([]byte("two"))
	fmt.Println(n, err)
	// Output: 1 sluice: the amount is more than the limit can ever admit
}

// conn is the connection that the keys below are made of.
var conn = func() net.Conn { c, _ := net.Pipe(); return c }()

func ExampleKey() {
	var network netlimit.Key = func(c net.Conn) ([]limit.Entry, bool) {
		return []limit.Entry{{Key: "network", Value: c.RemoteAddr().Network()}}, true
	}
	fmt.Println(network(conn))
	// Output: [{network pipe}] true
}

func ExampleKey_As() {
	fmt.Println(netlimit.Value("port", "25").As("listener")(conn))
	// Output: [{listener 25}] true
}

func ExampleJoin() {
	fmt.Println(netlimit.Join(netlimit.Value("port", "25"), netlimit.Value("zone", "a"))(conn))
	// Output: [{port 25} {zone a}] true
}

func ExampleFirst() {
	fmt.Println(netlimit.First(netlimit.IP(), netlimit.Value("ip", "none"))(conn))
	// Output: [{ip none}] true
}

func ExampleValue() {
	fmt.Println(netlimit.Value("port", "25")(conn))
	// Output: [{port 25}] true
}

func ExampleFrom() {
	fmt.Println(netlimit.From("network", func(c net.Conn) string { return c.RemoteAddr().Network() })(conn))
	// Output: [{network pipe}] true
}

func ExampleIP() {
	l := listen()
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	fmt.Println(netlimit.IP()(c))
	// Output: [{ip 127.0.0.1}] true
}
