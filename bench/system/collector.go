package system

import (
	"net"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// Collector takes what nodes send of their traces, and does nothing with it: it is there so that
// sending costs them what it costs. Close it.
type Collector struct {
	// URL is what --otlp-endpoint is to be.
	URL string

	server *grpc.Server
	served chan error
	taken  atomic.Int64
}

// NewCollector returns one on this machine.
func NewCollector() (*Collector, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, err
	}
	c := &Collector{URL: "http://" + l.Addr().String(), served: make(chan error, 1)}
	c.server = grpc.NewServer(grpc.ForceServerCodecV2(unread{}), grpc.UnknownServiceHandler(c.take))
	go func() { c.served <- c.server.Serve(l) }()
	return c, nil
}

// Taken returns how many messages have come.
func (c *Collector) Taken() int64 { return c.taken.Load() }

// Close ends it.
func (c *Collector) Close() error {
	c.server.Stop()
	return <-c.served
}

// take answers any call by an empty message, which means that all was taken.
func (c *Collector) take(_ any, stream grpc.ServerStream) error {
	if err := stream.RecvMsg(nil); err != nil {
		return err
	}
	c.taken.Add(1)
	return stream.SendMsg(nil)
}

// unread is a codec that looks into no message and writes empty ones.
type unread struct{}

var _ encoding.CodecV2 = unread{}

func (unread) Marshal(any) (mem.BufferSlice, error) { return nil, nil }

func (unread) Unmarshal(mem.BufferSlice, any) error { return nil }

func (unread) Name() string { return "unread" }
