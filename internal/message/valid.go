package message

import (
	"errors"
	"fmt"
	"math"

	"github.com/sluicecluster/sluice/internal/facts"
)

// ErrUnknown reports an unknown enumeration value, such as a Wish, which a newer node may have added.
var ErrUnknown = errors.New("unknown value")

// Validate reports why no process can process b: ErrUnknown, or the first number out of range. Machines check what depends
// on their own state, such as the number of partitions.
func Validate(b Body) error {
	var err error
	number := func(field string, n int) {
		if (n < 0 || n > math.MaxInt32) && err == nil {
			err = fmt.Errorf("%s: number %d; want 0 to %d", field, n, math.MaxInt32)
		}
	}
	unknown := false
	switch b := b.(type) {
	case nil:
		return errors.New("no message")
	case *Heartbeat:
		unknown = b.Wish > Leave
		number("expect", b.Expect)
	case *RegionMessages:
		for i := range b.List {
			if h := b.List[i].Heartbeat; h != nil {
				unknown = unknown || h.Wish > Leave
				number("expect", h.Expect)
			}
		}
		if len(b.Homes) > MaxHomes {
			return fmt.Errorf("homes: %d; want %d at most", len(b.Homes), MaxHomes)
		}
		for i := range b.Homes {
			if b.Homes[i].Epoch > MaxHomeEpoch {
				return fmt.Errorf("epoch: %d; want %d at most", b.Homes[i].Epoch, MaxHomeEpoch)
			}
		}
		if b.Counters != nil && err == nil {
			err = Validate(&b.Counters.Batch)
		}
		for i := 0; b.Taken != nil && i < len(b.Taken.Partitions); i++ {
			number("partition", b.Taken.Partitions[i])
		}
	case *OwnedPartitions:
		for i := range b.Partitions {
			number("partition", b.Partitions[i].Partition)
		}
	case *PendingGrants:
		for i := range b.Grants {
			number("partition", b.Grants[i].Partition)
		}
	case *Claim:
		for i := range b.Parts {
			number("partition", b.Parts[i].Partition)
		}
	case *ClaimResponse:
		for i := range b.Parts {
			number("partition", b.Parts[i].Partition)
			unknown = unknown || b.Parts[i].Has > Complete
		}
	case *Fetch:
		number("partition", b.Partition)
	case *Receipt:
		for i := range b.Rejected {
			number("part", b.Rejected[i].Part)
		}
	case *Account:
		for i := range b.Lines {
			number("reporters", b.Lines[i].Reporters)
		}
	case *FactsResponse:
		err = validateFacts(&b.Node)
	case *TransferBatch:
		size, counters := 0, 0
		for i := range b.Parts {
			t := &b.Parts[i]
			number("partition", t.Partition)
			number("counters", t.Counters)
			number("bytes", t.Bytes)
			if err != nil {
				break // the sums could overflow
			}
			unknown = unknown || t.Kind < InitialSync || t.Kind > Drop
			size, counters = size+t.Bytes, counters+t.Counters
		}
		number("counters of all parts", counters)
		switch {
		case err != nil:
		case size != len(b.Image.Data):
			err = fmt.Errorf("image: parts of %d bytes in all, data of %d; want as many", size, len(b.Image.Data))
		case b.Age < 0:
			err = fmt.Errorf("age: %d ns; want 0 or more", b.Age)
		}
	}
	if err == nil && unknown {
		return ErrUnknown
	}
	return err
}

func validateFacts(n *facts.Node) error {
	if len(n.ByRule) > facts.MaxRules {
		return fmt.Errorf("facts: %d rules; want at most %d", len(n.ByRule), facts.MaxRules)
	}
	slots := max(len(n.History), len(n.Members), len(n.Calls))
	for i := range n.ByRule {
		slots = max(slots, len(n.ByRule[i].History))
	}
	if slots > facts.Slots {
		return fmt.Errorf("facts: a history of %d slots; want at most %d", slots, facts.Slots)
	}
	if len(n.Files) > facts.MaxNotices || len(n.Insecure) > facts.MaxNotices {
		return fmt.Errorf("facts: %d files and %d notices; want at most %d of each", len(n.Files), len(n.Insecure), facts.MaxNotices)
	}
	texts := append([]string{n.RulesError, n.SnapshotLost, n.Region, n.RoleProblem}, n.Insecure...)
	for _, f := range n.Files {
		texts = append(texts, f.Label, f.Error)
	}
	if len(n.Regions) > facts.MaxNotices {
		return fmt.Errorf("facts: %d regions; want at most %d", len(n.Regions), facts.MaxNotices)
	}
	for _, r := range n.Regions {
		if len(r.Nodes) > facts.MaxNotices {
			return fmt.Errorf("facts: %d nodes of a region; want at most %d", len(r.Nodes), facts.MaxNotices)
		}
		texts = append(append(texts, r.Name, string(r.State), r.Reason), r.Nodes...)
	}
	for _, text := range texts {
		if len(text) > facts.MaxText {
			return fmt.Errorf("facts: a text of %d bytes; want at most %d", len(text), facts.MaxText)
		}
	}
	return nil
}
