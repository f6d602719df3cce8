package watch

import (
	"encoding/json"

	"github.com/sluice-project/sluice/limiter"
)

// The events, by name. Rates are per second, times in seconds.
const (
	// EventHistory is the first that a watcher gets: the last minutes.
	EventHistory = "history"
	// EventState comes every second.
	EventState = "state"
	// EventSlot comes when a slot of the history is over.
	EventSlot = "slot"
	// EventTop comes every five seconds.
	EventTop = "top"
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
	// At is Unix time.
	At float64 `json:"at"`
	// Self is the node that was asked.
	Self       string       `json:"self"`
	Ring       string       `json:"ring"`
	Partitions int          `json:"partitions"`
	Set        *voterSet    `json:"voter_set,omitempty"`
	Members    []memberJSON `json:"members"`
	// Missing did not answer in time.
	Missing []string `json:"missing"`
	// Rules is the hash of Self's.
	Rules   string      `json:"rules"`
	Total   rates       `json:"total"`
	Latency latency     `json:"latency"`
	ByRule  []ruleRates `json:"by_rule"`
}

type voterSet struct {
	ClusterID string   `json:"cluster_id"`
	Version   uint64   `json:"version"`
	Members   []string `json:"members"`
}

// memberJSON is one node. What it tells of itself is left out while it does not answer.
type memberJSON struct {
	Name       string `json:"name"`
	Boot       string `json:"boot"`
	State      string `json:"state"`
	Version    string `json:"version"`
	Counted    bool   `json:"counted"`
	Lives      bool   `json:"lives"`
	Partitions int    `json:"partitions"`
	Holds      int    `json:"holds"`
	// Silent is left out if it is not known.
	Silent *float64 `json:"silent,omitempty"`
	Own    *own     `json:"own,omitempty"`
}

// own is what a node tells of itself.
type own struct {
	MayDecide bool     `json:"may_decide"`
	Reason    string   `json:"reason,omitempty"`
	Rules     string   `json:"rules"`
	Checks    float64  `json:"checks"`
	Holdings  holdings `json:"holdings"`
}

type holdings struct {
	Holding       int `json:"holding"`
	Unprotected   int `json:"unprotected"`
	BelowReplicas int `json:"below_replicas"`
	HandingOver   int `json:"handing_over"`
	Copies        int `json:"copies"`
	Claims        int `json:"claims"`
	Divergent     int `json:"divergent"`
	Lost          int `json:"lost"`
}

// latency of the calls of the last interval; all 0 if there were none.
type latency struct {
	Calls float64 `json:"calls"`
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P99   float64 `json:"p99"`
}

// history is the body of EventHistory, and with one slot of EventSlot.
type history struct {
	// Slot is the length of one, in seconds. Until is the Unix time at which the last one ended.
	Slot   float64       `json:"slot"`
	Until  float64       `json:"until"`
	Total  series        `json:"total"`
	ByRule []*ruleSeries `json:"by_rule"`
}

// series are checks a second in each slot, the oldest first.
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
	// Off: nobody counts keys.
	Off      bool     `json:"off,omitempty"`
	Covers   float64  `json:"covers"`
	Limited  []topKey `json:"limited"`
	Frequent []topKey `json:"frequent"`
	Missing  []string `json:"missing"`
}

type topKey struct {
	Domain     string  `json:"domain"`
	Descriptor []entry `json:"descriptor"`
	Rule       string  `json:"rule,omitempty"`
	Cut        bool    `json:"cut,omitempty"`
	PerSecond  float64 `json:"per_second"`
}

type entry struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

func topKeysOf(t limiter.Top) []topKey {
	list := make([]topKey, len(t.Keys))
	for i, k := range t.Keys {
		list[i] = topKey{Domain: k.Domain, Descriptor: make([]entry, len(k.Descriptor)), Rule: k.Rule, Cut: k.Cut, PerSecond: k.PerSecond}
		for j, e := range k.Descriptor {
			list[i].Descriptor[j] = entry(e)
		}
	}
	return list
}

// frame encodes body as an event of text/event-stream.
func frame(event string, body any) []byte {
	data, err := json.Marshal(body)
	if err != nil {
		panic("watch: " + err.Error()) // the types above, of finite numbers
	}
	b := make([]byte, 0, len(event)+len(data)+16)
	b = append(append(b, "event: "...), event...)
	b = append(append(b, "\ndata: "...), data...)
	return append(b, "\n\n"...)
}
