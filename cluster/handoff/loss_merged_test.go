package handoff

import (
	"testing"

	"github.com/sluicecluster/sluice/internal/message"
)

// TestMergedLoss: what is left of a loss after a copy has been merged is lost here and in the copy.
func TestMergedLoss(t *testing.T) {
	e := func(claims uint64) message.Epoch { return message.Epoch{Gen: claims << message.Handoffs, Boot: "p"} }
	certain := func(complete, last uint64) loss {
		return loss{complete: e(complete), last: e(last), lastCertain: e(last)}
	}
	// Of 8 and 6 it is not known whether a process owned the partition; of 2 it is.
	nested := loss{last: e(8), before: [4]message.Epoch{e(6)}, lastCertain: e(2)}
	for _, c := range []struct {
		name  string
		l     loss
		epoch uint64
		rest  loss
		want  loss
	}{
		{"nothing is lost", loss{}, 5, certain(1, 4), loss{}},
		{"the last epoch", certain(1, 4), 4, loss{}, loss{}},
		{"a later one", certain(1, 4), 5, loss{}, loss{}},
		{"it lacks less", certain(1, 4), 4, certain(1, 3), certain(1, 3)},
		{"it lacks what is here", certain(3, 5), 5, certain(1, 3), loss{}},
		{"it lacks what is not lost here", nested, 8, certain(2, 7), loss{complete: e(2), last: e(6), lastCertain: e(2)}},
		{"an earlier epoch", certain(1, 4), 3, loss{}, certain(3, 4)},
		{"an earlier one that lacks what is here", certain(2, 4), 3, certain(1, 2), certain(3, 4)},
		{"an earlier one that lacks what is lost", nested, 6, certain(0, 1), loss{last: e(8), lastCertain: e(1)}},
		{"an earlier one that may lack more", nested, 6, loss{last: e(4), lastCertain: e(1)}, loss{last: e(8), before: [4]message.Epoch{e(4)}, lastCertain: e(1)}},
		{"one before the uncertain ones", nested, 3, certain(0, 1), nested},
	} {
		if got := c.l.merged(e(c.epoch), c.rest); got != c.want {
			t.Errorf("%s: %+v is left, want %+v", c.name, got, c.want)
		}
	}
}
