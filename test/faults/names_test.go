//go:build linux

package faults

import (
	"context"
	"encoding/binary"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/sluicecluster/sluice/test/faultnet"
)

// seeds is the name that nodes of some scenarios join.
const seeds = "seeds.test"

// serveNames answers the DNS queries of all nodes: with the addresses that answer returns for a node, a
// time after the first process was started, or that there is no such name.
func (c *cell) serveNames(answer func(node netip.Addr, after time.Duration) []netip.Addr) {
	c.t.Helper()
	var conn net.PacketConn
	err := faultnet.In(c.namespace(clientHost), func() (err error) {
		conn, err = new(net.ListenConfig).ListenPacket(context.Background(), "udp4", c.addr(clientHost).String()+":53")
		return err
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { conn.Close() })
	for _, n := range c.nodes {
		dir := filepath.Join("/etc/netns", c.namespace(n.host))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			c.t.Fatal(err)
		}
		c.t.Cleanup(func() { os.RemoveAll(dir) })
		if err := os.WriteFile(filepath.Join(dir, "resolv.conf"), []byte("nameserver "+c.addr(clientHost).String()+"\n"), 0o644); err != nil {
			c.t.Fatal(err)
		}
	}
	began := time.Now()
	go func() {
		buf := make([]byte, 512)
		for {
			size, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			addrs := answer(from.(*net.UDPAddr).AddrPort().Addr().Unmap(), time.Since(began))
			if reply := dnsReply(buf[:size], addrs); reply != nil {
				conn.WriteTo(reply, from)
			}
		}
	}()
}

// serveOther has another service, of HTTP, answer at a host's gossip port.
func (c *cell) serveOther(host int) {
	c.t.Helper()
	err := faultnet.In(c.namespace(host), func() error {
		l, err := new(net.ListenConfig).Listen(context.Background(), "tcp4", c.addr(host).String()+":7463")
		if err == nil {
			server := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: time.Second}
			go server.Serve(l)
			c.t.Cleanup(func() { server.Close() })
		}
		return err
	})
	if err != nil {
		c.t.Fatal(err)
	}
}

// dnsReply answers a query of one question, for IPv4 addresses, by these; others have no such record.
func dnsReply(query []byte, addrs []netip.Addr) []byte {
	if len(query) < 12 {
		return nil
	}
	end := 12
	for end < len(query) && query[end] != 0 {
		end += int(query[end]) + 1
	}
	if end += 5; end > len(query) {
		return nil
	}
	reply := append([]byte(nil), query[:end]...)
	reply[2], reply[3] = 0x84, 0x00 // a response, of an authority
	if len(addrs) == 0 {
		reply[3] = 3 // no such name
	}
	clear(reply[6:12])
	if a := binary.BigEndian.Uint16(query[end-4:]) == 1; !a {
		return reply
	}
	binary.BigEndian.PutUint16(reply[6:], uint16(len(addrs)))
	for _, addr := range addrs {
		reply = append(reply, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4) // the question's name, A, IN, no time to live
		reply = append(reply, addr.AsSlice()...)
	}
	return reply
}
