package sluice

import (
	"fmt"
	"net"
	"sync"
	"time"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"google.golang.org/grpc"
)

// NodeForExamples starts a node for the examples and returns its address. Every descriptor may spend 3 units a minute, one of
// a tenant 5, and a cost above that is never admitted. The domain of guests is not known.
func NodeForExamples() (addr string, stop func()) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	var mu sync.Mutex
	spent := map[string]int64{}
	cluster := &fakeCluster{decide: func(n *fakeNode, c *sluicev1.Check) *sluicev1.Decision {
		mu.Lock()
		defer mu.Unlock()
		if c.GetDomain() == "guests" {
			return &sluicev1.Decision{Error: &sluicev1.Error{Code: sluicev1.ErrorCode_ERROR_CODE_FORBIDDEN, Field: "checks[0].domain", Message: "not for this caller"}}
		}
		most, amount := int64(3), int64(1)
		if c.GetDescriptor_()[0].GetKey() == "tenant" {
			most = 5
		}
		if c.Cost != nil {
			amount = c.GetCost()
		}
		key := fmt.Sprint(c.GetDomain(), c.GetDescriptor_(), c.GetLimits())
		if len(c.GetLimits()) > 0 {
			most = c.GetLimits()[0].GetCount()
		}
		d := &sluicev1.Decision{
			Allowed: true, Verdict: sluicev1.Verdict_VERDICT_ALLOWED, Source: sluicev1.Source_SOURCE_OWNED, Owner: n.name, LimitName: "per minute",
			Rule: c.GetDomain() + "/" + c.GetDescriptor_()[0].GetKey(), Limit: &most, Count: most, PeriodNs: int64(time.Minute),
		}
		switch v := c.GetVerb(); {
		case v == sluicev1.Verb_VERB_CHARGE:
			spent[key] += amount
		case v == sluicev1.Verb_VERB_REFUND:
			spent[key] = max(0, spent[key]-amount)
		case v == sluicev1.Verb_VERB_RESET:
			delete(spent, key)
		case amount > most:
			d.Allowed, d.Verdict = false, sluicev1.Verdict_VERDICT_DENIED_NEVER
		case spent[key]+amount > most:
			d.Allowed, d.Verdict, d.RetryAfterNs = false, sluicev1.Verdict_VERDICT_DENIED, new(int64(20*time.Second))
		case v == sluicev1.Verb_VERB_CHECK:
			spent[key] += amount
		}
		d.Remaining = new(max(0, most-spent[key]))
		return d
	}}
	cluster.slots.owner = "n1"
	n := &fakeNode{name: "n1", addr: l.Addr().String(), cluster: cluster, server: grpc.NewServer()}
	cluster.nodes = []*fakeNode{n}
	sluicev1.RegisterRateLimitServiceServer(n.server, n)
	go n.server.Serve(l)
	return n.addr, n.server.Stop
}
