package snapshot

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/sluice-project/sluice/internal/message"
)

const (
	votersName    = "voters.json"
	votersTemp    = votersName + ".new"
	votersRefused = votersName + ".refused"
	votersFormat  = 1
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
	if err := d.root.Rename(votersName, votersRefused); err != nil {
		return r, "", fmt.Errorf("rename %s, which is of another node or cluster: %w", file, bare(err))
	}
	return r, d.file(votersRefused), d.sync()
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
