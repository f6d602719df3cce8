package snapshot

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/message"
)

const (
	votersName     = "voters.json"
	votersTemp     = votersName + ".new"
	votersRejected = votersName + ".rejected"
	votersFormat   = 1
)

// voters is the content of the file with a process's part in the voter set.
type voters struct {
	Format      int            `json:"format"`
	Name        string         `json:"name"`
	Fingerprint string         `json:"fingerprint"`
	Record      message.Record `json:"record"`
	Sum         uint32         `json:"sum"` // of all fields, with this as 0
}

func (v voters) sum() (uint32, error) {
	v.Sum = 0
	text, err := json.Marshal(v)
	return checksum(0, text), err
}

// PutVoters makes r the node's part in the voter set, and returns when it is durable. name and fingerprint are those of the node
// and of its cluster's secret. One call at a time.
func (d *Dir) PutVoters(name string, fingerprint [16]byte, r message.Record) error {
	v := voters{Format: votersFormat, Name: name, Fingerprint: hex.EncodeToString(fingerprint[:]), Record: r}
	if err := d.putVoters(v); err != nil {
		return fmt.Errorf("write the voter set to %s: %w", d.file(votersName), bare(err))
	}
	return nil
}

func (d *Dir) putVoters(v voters) error {
	var err error
	if v.Sum, err = v.sum(); err != nil {
		return err
	}
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	f, err := d.root.Create(votersTemp)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := d.root.Rename(votersTemp, votersName); err != nil {
		return err
	}
	return d.sync()
}

// Voters returns the record that PutVoters wrote last, the zero Record if there is none. A file of another node or cluster is
// renamed to aside. A damaged file is an error, because this node's promises are then unknown.
func (d *Dir) Voters(name string, fingerprint [16]byte) (r message.Record, aside string, err error) {
	text, err := fs.ReadFile(d.root.FS(), votersName)
	if errors.Is(err, fs.ErrNotExist) {
		return r, "", nil
	}
	file := d.file(votersName)
	if err != nil {
		return r, "", fmt.Errorf("read the voter set from %s: %w", file, bare(err))
	}
	v, err := parseVoters(text)
	if err != nil {
		return r, "", fmt.Errorf("%s: %w; put the file back from a copy, or remove it: the node then joins the others as a new one", file, err)
	}
	if v.Name == name && v.Fingerprint == hex.EncodeToString(fingerprint[:]) {
		return v.Record, "", nil
	}
	if err := d.root.Rename(votersName, votersRejected); err != nil {
		return r, "", fmt.Errorf("rename %s, which is of another node or cluster: %w", file, bare(err))
	}
	return r, d.file(votersRejected), d.sync()
}

func parseVoters(text []byte) (v voters, err error) {
	if err := json.Unmarshal(text, &v); err != nil {
		return v, fmt.Errorf("the voter set is damaged: %w", err)
	}
	if v.Format != votersFormat {
		return v, fmt.Errorf("the voter set has format %d, this program knows %d", v.Format, votersFormat)
	}
	sum, err := v.sum()
	if err == nil && sum != v.Sum {
		err = errors.New("the voter set is damaged: its checksum is wrong")
	}
	return v, err
}

// limitSet is a set of limits as it is written, after its number.
type limitSet struct {
	Domain string
	Home   string `cbor:",omitzero"`
	Limits []bucket.Limit
}

// parseLimits returns nil for a set that this program does not know.
func parseLimits(text []byte) *bucket.Limits {
	var s limitSet
	if decodeMode.Unmarshal(text, &s) != nil {
		return nil
	}
	limits, err := bucket.NewLimitsAt(s.Domain, s.Home, s.Limits...)
	if err != nil {
		return nil
	}
	return limits
}

// After maxSets sets of limits, numbering starts again from 0 and forgets the earlier ones: there may be any number of sets. It
// does so between images only, so one image can have up to mostSets.
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

// number returns the number of l, and its text if it is new.
func (n *numbering) number(l *bucket.Limits) (number int, text []byte, err error) {
	if number, ok := n.byPlace[l]; ok {
		return number, nil, nil
	}
	set := limitSet{Domain: l.Domain(), Home: l.Home(), Limits: make([]bucket.Limit, l.Len())}
	for i := range set.Limits {
		if set.Limits[i] = l.At(i); set.Limits[i].Unlimited {
			set.Limits[i] = bucket.Limit{Unlimited: true} // all else is ignored, and may be anything
		}
	}
	text, err = encodeMode.Marshal(&set)
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
