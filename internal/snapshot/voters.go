package snapshot

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/message"
)

const (
	votersName     = "voters.json"
	votersTemp     = votersName + ".new"
	votersRejected = votersName + ".rejected"
	votersFormat   = 1
)

// voters is the file that a process's part in the voter set is kept in.
type voters struct {
	Format      int            `json:"format"`
	Name        string         `json:"name"`
	Fingerprint string         `json:"fingerprint"`
	Record      message.Record `json:"record"`
	Sum         uint32         `json:"sum"` // of all of it, with this as 0
}

func (v voters) encode() ([]byte, error) {
	v.Sum = 0
	bare, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	v.Sum = checksum(0, bare)
	text, err := json.MarshalIndent(v, "", "  ")
	return append(text, '\n'), err
}

// PutVoters makes r the node's part in the voter set, and returns when a power cut can do nothing to it any more. name and
// fingerprint are those of the node and of its cluster's secret. One call at a time.
func (d *Dir) PutVoters(name string, fingerprint [16]byte, r message.Record) error {
	v := voters{Format: votersFormat, Name: name, Fingerprint: hex.EncodeToString(fingerprint[:]), Record: r}
	if err := d.putVoters(v); err != nil {
		return fmt.Errorf("write the voter set to %s: %w", d.file(votersName), bare(err))
	}
	return nil
}

func (d *Dir) putVoters(v voters) error {
	text, err := v.encode()
	if err != nil {
		return err
	}
	f, err := d.root.Create(votersTemp)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := d.root.Rename(votersTemp, votersName); err != nil {
		return err
	}
	return d.sync()
}

// Voters returns what PutVoters wrote last, the zero Record if nothing. What is of another node or another cluster is
// renamed and told in aside. What is damaged is an error: what this node has promised is not known.
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
	sum := v.Sum
	v.Sum = 0
	bare, err := json.Marshal(v)
	if err == nil && checksum(0, bare) != sum {
		err = errors.New("the voter set is damaged: its checksum is wrong")
	}
	return v, err
}

// limitSet is a set of limits as it is written, after its number.
type limitSet struct {
	Domain string
	Limits []bucket.Limit
}

// parseLimits returns nil for a set that has what this program does not know.
func parseLimits(text []byte) *bucket.Limits {
	var s limitSet
	if decodeMode.Unmarshal(text, &s) != nil {
		return nil
	}
	limits, err := bucket.NewLimitsIn(s.Domain, s.Limits...)
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
	set := limitSet{Domain: l.Domain(), Limits: make([]bucket.Limit, l.Len())}
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
