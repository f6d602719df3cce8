package snapshot

import (
	"bytes"
	"encoding"
	"encoding/json"
	"time"

	"github.com/sluice-project/sluice/bucket"
)

// limitText is a bucket.Limit as it is written: names as in rule files, times in
// nanoseconds, nothing for what is zero.
type limitText struct {
	Algorithm   string        `json:"algorithm,omitzero"`
	Count       int64         `json:"count,omitzero"`
	Period      time.Duration `json:"period_ns,omitzero"`
	Unlimited   bool          `json:"unlimited,omitzero"`
	Burst       int64         `json:"burst,omitzero"`
	Cost        int64         `json:"cost,omitzero"`
	Refill      string        `json:"refill,omitzero"`
	Align       string        `json:"align,omitzero"`
	Unit        string        `json:"unit,omitzero"`
	Zone        string        `json:"timezone,omitzero"`
	MinInterval time.Duration `json:"min_interval_ns,omitzero"`
	Soft        int32         `json:"soft,omitzero"`
	CountDenied bool          `json:"count_denied,omitzero"`
	SubWindows  int32         `json:"sub_windows,omitzero"`
	LogEntries  int32         `json:"log_entries,omitzero"`
}

func spell(l bucket.Limit) limitText {
	if l.Unlimited {
		return limitText{Unlimited: true} // all else is ignored, and may be anything
	}
	return limitText{
		Algorithm: name(l.Algorithm), Count: l.Count, Period: l.Period, Burst: l.Burst, Cost: l.Cost,
		Refill: name(l.Refill), Align: name(l.Align), Unit: name(l.Unit), Zone: l.Zone, MinInterval: l.MinInterval,
		Soft: l.Soft, CountDenied: l.CountDenied, SubWindows: l.SubWindows, LogEntries: l.LogEntries,
	}
}

func (t *limitText) limit() (bucket.Limit, error) {
	if t.Unlimited {
		return bucket.Limit{Unlimited: true}, nil
	}
	l := bucket.Limit{
		Count: t.Count, Period: t.Period, Burst: t.Burst, Cost: t.Cost, Zone: t.Zone, MinInterval: t.MinInterval,
		Soft: t.Soft, CountDenied: t.CountDenied, SubWindows: t.SubWindows, LogEntries: t.LogEntries,
	}
	for _, n := range []struct {
		text string
		to   encoding.TextUnmarshaler
	}{{t.Algorithm, &l.Algorithm}, {t.Refill, &l.Refill}, {t.Align, &l.Align}, {t.Unit, &l.Unit}} {
		if n.text == "" {
			continue
		}
		if err := n.to.UnmarshalText([]byte(n.text)); err != nil {
			return bucket.Limit{}, err
		}
	}
	return l, nil
}

// name returns v's name, nothing if v is zero.
func name[T interface {
	~uint8
	String() string
}](v T) string {
	if v == 0 {
		return ""
	}
	return v.String()
}

// setText is a set of limits as it is written.
type setText struct {
	Domain string      `json:"domain,omitzero"`
	Limits []limitText `json:"limits"`
}

func spellLimits(l *bucket.Limits) ([]byte, error) {
	set := setText{Domain: l.Domain(), Limits: make([]limitText, l.Len())}
	for i := range set.Limits {
		set.Limits[i] = spell(l.At(i))
	}
	return json.Marshal(set)
}

// parseLimits returns nil for a set that has what this program does not know.
func parseLimits(text []byte) *bucket.Limits {
	var set setText
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if d.Decode(&set) != nil {
		return nil
	}
	list := make([]bucket.Limit, len(set.Limits))
	for i := range list {
		l, err := set.Limits[i].limit()
		if err != nil {
			return nil
		}
		list[i] = l
	}
	limits, err := bucket.NewLimitsIn(set.Domain, list...)
	if err != nil {
		return nil
	}
	return limits
}

// maxSets is how many sets of limits are numbered before numbering starts again from 0,
// which forgets the earlier ones: callers may bring limits of their own, as many as they like.
// That happens between images only, so one that has many can go above it, to mostSets.
const (
	maxSets  = 1 << 14
	mostSets = 1 << 20
)

// numbering gives sets of limits their numbers while writing.
type numbering struct {
	byPlace map[*bucket.Limits]int
	byText  map[string]int
}

func newNumbering() numbering {
	return numbering{make(map[*bucket.Limits]int), make(map[string]int)}
}

// full says that it is time to begin anew.
func (n *numbering) full() bool { return len(n.byPlace) >= maxSets }

// number returns the number of l, and its text if it is new.
func (n *numbering) number(l *bucket.Limits) (number int, text []byte, err error) {
	if number, ok := n.byPlace[l]; ok {
		return number, nil, nil
	}
	text, err = spellLimits(l)
	if err != nil {
		return 0, nil, err
	}
	number, known := n.byText[string(text)]
	if known {
		text = nil
	} else {
		number = len(n.byText)
		n.byText[string(text)] = number
	}
	n.byPlace[l] = number
	return number, text, nil
}
