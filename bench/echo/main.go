// Command echo measures the limit of the transport: a gRPC server with sluice's messages that decides nothing. It has the
// options of sluice's public server and gRPC's own codec, and its decisions have the size of sluice's.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"io"
	"log"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/transport/grpcapi"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:7460", "`address` to listen on")
	cert := flag.String("cert", "", "`file` with a certificate; turns TLS on")
	key := flag.String("key", "", "`file` with its key")
	flag.Parse()
	l, err := net.Listen("tcp", *addr)
	if err != nil {
		log.Fatal(err)
	}
	options := grpcapi.ServerOptions()
	if *cert != "" {
		pair, err := tls.LoadX509KeyPair(*cert, *key)
		if err != nil {
			log.Fatal(err)
		}
		// As sluice has it.
		options = append(options, grpc.Creds(credentials.NewTLS(&tls.Config{
			Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true,
		})))
	}
	s := grpc.NewServer(options...)
	sluicev1.RegisterRateLimitServiceServer(s, echo{})
	log.Fatal(s.Serve(l))
}

type echo struct {
	sluicev1.UnimplementedRateLimitServiceServer
}

// Check implements sluicev1.RateLimitServiceServer.
func (echo) Check(_ context.Context, req *sluicev1.CheckRequest) (*sluicev1.CheckResponse, error) {
	return answer(req), nil
}

// CheckStream implements sluicev1.RateLimitServiceServer.
func (echo) CheckStream(stream grpc.BidiStreamingServer[sluicev1.CheckRequest, sluicev1.CheckResponse]) error {
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(answer(req)); err != nil {
			return err
		}
	}
}

var limit, remaining = int64(1_000_000_000), int64(999_999_990)

// answer has a decision for each check, of the size of sluice's under rules/allowed.yaml, in one allocation as sluice's.
func answer(req *sluicev1.CheckRequest) *sluicev1.CheckResponse {
	n := len(req.GetChecks())
	list := make([]sluicev1.Decision, n)
	out := make([]*sluicev1.Decision, n)
	for i := range list {
		d := &list[i]
		d.Allowed, d.Verdict = true, sluicev1.Verdict_VERDICT_ALLOWED
		d.Limit, d.Remaining = &limit, &remaining
		d.ResetAfterNs = 36_000_000_000_000
		d.Rule, d.LimitName = "allowed/user", "allowed/user"
		d.Source = sluicev1.Source_SOURCE_OWNED
		d.Owner = "n1"
		d.PeriodNs, d.Count = 3_600_000_000_000, limit
		out[i] = d
	}
	return &sluicev1.CheckResponse{Id: req.GetId(), Decisions: out}
}
