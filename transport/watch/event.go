package watch

import (
	"encoding/json"
	"fmt"

	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/transport/internal/httpanswer"
)

// The events, by name. Rates are per second, times in seconds.
const (
	EventHistory = "history" // the last minutes, first of all
	EventState   = "state"   // every second
	EventSlot    = "slot"    // after the end of a slot of the history: that slot, and older ones that may have changed
	EventTop     = "top"     // every five seconds
)

// rates are checks a second by result.
type rates struct {
	Allowed  float64 `json:"allowed"`
	Denied   float64 `json:"denied"`
	Shadowed float64 `json:"shadowed"`
	Failed   float64 `json:"failed"`
}

type ruleRates struct {
	Domain string `json:"domain"`
	Name   string `json:"name"`
	rates
}

// state is the body of EventState.
type state struct {
	At         float64           `json:"at"`   // Unix time
	Self       string            `json:"self"` // the node that is watched
	Ring       string            `json:"ring"`
	Partitions int               `json:"partitions"`
	Set        *limiter.VoterSet `json:"voter_set,omitempty"`
	Health     limiter.Health    `json:"health"`
	Members    []memberJSON      `json:"members"`
	Missing    []string          `json:"missing"` // did not respond in time
	Rules      string            `json:"rules"`   // the hash of Self's
	Total      *rates            `json:"total"`   // of the nodes whose rates are known, null if none are
	ByRule     []ruleRates       `json:"by_rule"`
	Regions    []regionJSON      `json:"regions,omitempty"` // see facts.RegionsOf
}

// regionJSON is a facts.RegionView.
type regionJSON struct {
	Name      string            `json:"name"`
	Self      bool              `json:"self,omitempty"`
	State     facts.RegionState `json:"state,omitempty"`
	InState   float64           `json:"in_state"`
	Linked    int               `json:"linked"`
	Of        int               `json:"of"`
	RTT       float64           `json:"rtt"`
	Weight    int               `json:"weight"`
	DecidedBy string            `json:"decided_by"`
	Undecided bool              `json:"undecided,omitempty"`
	Reason    string            `json:"reason,omitempty"`
}

// memberJSON is one node. Own is left out while the node does not respond, Silent if it is not known.
type memberJSON struct {
	Name       string   `json:"name"`
	Boot       string   `json:"boot"`
	Address    string   `json:"address,omitempty"` // of the gRPC API
	Zone       string   `json:"zone,omitempty"`
	State      string   `json:"state"`
	Version    string   `json:"version"`
	Voter      bool     `json:"voter"`
	Alive      bool     `json:"alive"`
	Partitions int      `json:"partitions"`
	Owned      int      `json:"owned"`
	Silent     *float64 `json:"silent,omitempty"`
	Own        *own     `json:"own,omitempty"`
}

// own is a node's report of itself.
type own struct {
	MayDecide       bool                    `json:"may_decide"`
	Reason          string                  `json:"reason,omitempty"`
	Rules           string                  `json:"rules"`
	Checks          *float64                `json:"checks"` // null with the first report
	PartitionCounts limiter.PartitionCounts `json:"partition_counts"`
	Uptime          float64                 `json:"uptime"`
	Keys            int64                   `json:"keys"` // counters, and their memory
	Bytes           int64                   `json:"bytes"`
	MaxBytes        int64                   `json:"max_bytes"`
}

// history is the body of EventHistory and EventSlot. It has the newest slots that have ended, the oldest first.
type history struct {
	// Slot is the length of one, in seconds. Until is the Unix time at which the last one ended.
	Slot  float64 `json:"slot"`
	Until float64 `json:"until"`
	// Nodes is how many nodes have counted in each slot, of Members in the cluster. Without any, the slot is not known.
	Nodes   []int `json:"nodes"`
	Members []int `json:"members"`
	// P50, P95 and P99 are the times to decide a call, null without calls.
	P50    []*float64   `json:"p50"`
	P95    []*float64   `json:"p95"`
	P99    []*float64   `json:"p99"`
	Total  series       `json:"total"`
	ByRule []ruleSeries `json:"by_rule"`
}

// series are checks a second in each slot.
type series struct {
	Allowed  []float64 `json:"allowed"`
	Denied   []float64 `json:"denied"`
	Shadowed []float64 `json:"shadowed"`
	Failed   []float64 `json:"failed"`
}

type ruleSeries struct {
	Domain string `json:"domain"`
	Name   string `json:"name"`
	series
}

// top is the body of EventTop.
type top struct {
	// Off: this node counts no keys.
	Off      bool     `json:"off,omitempty"`
	Covers   float64  `json:"covers"`
	Limited  []topKey `json:"limited"`
	Frequent []topKey `json:"frequent"`
	Missing  []string `json:"missing"`
}

type topKey struct {
	Domain     string             `json:"domain"`
	Descriptor []httpanswer.Entry `json:"descriptor"`
	Rule       string             `json:"rule,omitempty"`
	Cut        bool               `json:"cut,omitempty"`
	PerSecond  float64            `json:"per_second"`
}

func topKeysOf(t limiter.Top) []topKey {
	list := make([]topKey, len(t.Keys))
	for i, k := range t.Keys {
		list[i] = topKey{k.Domain, httpanswer.Entries(k.Descriptor), k.Rule, k.Cut, k.PerSecond}
	}
	return list
}

// frame encodes body as an event of text/event-stream.
func frame(event string, body any) []byte {
	data, err := json.Marshal(body)
	if err != nil {
		panic("watch: " + err.Error()) // the types above, of finite numbers
	}
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", event, data)
}
