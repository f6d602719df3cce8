// Package local is a rate limiter in one process, without a server: for small services, for development, and as a fallback
// that knows the rules while no node responds (limit.FailTo).
//
// It reads the rule files of nodes and decides as a node that is alone. What rules say about other nodes has no effect
// (consistency, replication, on_failure, on_partition, on_lost_state), nor has reservation. A pool admits nothing: only the limits of a rule with
// elastic count, because every process would have all of the pool. Nothing is logged: a check that no rule matches has
// limit.SourceUnmatched and no Rule.
//
// Counters end with the process. A Limiter has no goroutine, and needs no Close.
package local

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing/fstest"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/rules"
)

// Limiter decides checks by rules. Make it with New. It is safe for concurrent use.
type Limiter struct {
	options
	table *bucket.Table
	set   atomic.Pointer[rules.Set]
	seeds [2]maphash.Seed // of the two halves of counter keys
	// As on nodes, setting the wall clock neither ends windows nor holds them up.
	began  time.Time
	epoch  int64 // Unix time in ns of began
	reload sync.Mutex
}

var _ limit.Limiter = (*Limiter)(nil)

type options struct {
	memory       int64
	parse        rules.Options
	knownDomains bool
}

// Option changes a Limiter.
type Option func(*options)

// WithMemory bounds the memory of counters, in bytes; 64 MiB by default. A counter takes about 70, more with several limits or a
// log. Beyond the bound those that were not used for longest are forgotten.
func WithMemory(bytes int64) Option { return func(o *options) { o.memory = bytes } }

// WithMergedDomains lets several rule files describe one domain, as --merge-domains of nodes.
func WithMergedDomains() Option { return func(o *options) { o.parse.MergeDomains = true } }

// WithKnownDomainsOnly makes a check of a domain without rules an error, limit.ErrUnknownDomain, as --unknown-domain=error of
// nodes. By default it is allowed.
func WithKnownDomainsOnly() Option { return func(o *options) { o.knownDomains = true } }

const (
	defaultMemory = 64 << 20
	shards        = 64 // each has a lock
	maxChecks     = 10_000
)

// New returns a Limiter by the rule files of a directory, for example os.DirFS("rules"), an embed.FS or a Text. It reads
// those that nodes read there: *.yaml and *.yml in all directories, but none that are hidden or called *_test.yaml, nor what
// links to directories lead to. The error has the file and the line of each error in them.
func New(files fs.FS, opts ...Option) (*Limiter, error) {
	l := &Limiter{options: options{memory: defaultMemory}, seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}, began: time.Now()}
	l.epoch = l.began.UnixNano()
	for _, f := range opts {
		f(&l.options)
	}
	if l.memory < 1<<20 {
		return nil, fmt.Errorf("sluice: local: WithMemory: %d bytes; want at least 1 MiB", l.memory)
	}
	table, err := bucket.NewTable(bucket.Config{Shards: shards, MaxBytes: l.memory, MaxEntries: int(l.memory / bucket.LeastBytes)})
	if err != nil {
		return nil, fmt.Errorf("sluice: local: %w", err)
	}
	l.table = table
	if err := l.Reload(files); err != nil {
		return nil, err
	}
	return l, nil
}

// Text is a directory with one rule file, rules.yaml.
func Text(yaml string) fs.FS { return fstest.MapFS{"rules.yaml": {Data: []byte(yaml)}} }

// Reload replaces the rules, and keeps all counters: those of a rule that has changed have its new limits from the next check
// on. After an error the rules are as before.
func (l *Limiter) Reload(files fs.FS) error {
	list, err := read(files)
	var set *rules.Set
	if err == nil {
		set, err = rules.Parse(list, l.parse)
	}
	if err != nil {
		return fmt.Errorf("sluice: local: %w", err)
	}
	l.reload.Lock()
	defer l.reload.Unlock()
	l.table.SetDomains(set.MaxKeys())
	l.set.Store(set)
	return nil
}

// read returns the rule files, chosen as internal/rulefiles does.
func read(fsys fs.FS) (files []rules.File, err error) {
	err = fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		base, ext := path.Base(name), path.Ext(name)
		hidden := name != "." && strings.HasPrefix(base, ".")
		switch {
		case err != nil:
			return err
		case hidden && d.IsDir():
			return fs.SkipDir
		case hidden, d.IsDir(), ext != ".yaml" && ext != ".yml", strings.HasSuffix(base, "_test"+ext):
			return nil
		}
		data, err := fs.ReadFile(fsys, name)
		files = append(files, rules.File{Name: name, Data: data})
		return err
	})
	if err == nil && len(files) == 0 {
		err = errors.New("no rule files (*.yaml or *.yml, not hidden, not *_test.yaml)")
	}
	return files, err
}

// Key returns the counter of a domain and a descriptor, given as keys and values in turns.
func (l *Limiter) Key(domain string, descriptor ...string) limit.Key {
	return limit.NewKey(l, domain, descriptor...)
}

func (l *Limiter) now() int64 { return l.epoch + int64(time.Since(l.began)) }

// Check decides one check. It does not use the context.
func (l *Limiter) Check(_ context.Context, c limit.Check) (limit.Decision, error) {
	var m matched
	if err := l.match(l.set.Load(), &c, &m); err != nil {
		return limit.Decision{}, err
	}
	if m.Limits != nil {
		m.decided(l.table.Do(l.now(), &m.Request))
	}
	return m.finish(false, 0), nil
}

// CheckEach decides 1 to 10,000 checks, each by itself. The error joins those of the checks, whose decisions are zero.
func (l *Limiter) CheckEach(ctx context.Context, checks ...limit.Check) ([]limit.Decision, error) {
	if err := validateCount(len(checks)); err != nil {
		return nil, err
	}
	decisions, errs := make([]limit.Decision, len(checks)), make([]error, len(checks))
	for i := range checks {
		if decisions[i], errs[i] = l.Check(ctx, checks[i]); errs[i] != nil {
			errs[i] = at(i, errs[i])
		}
	}
	return decisions, errors.Join(errs...)
}

// CheckAll decides 1 to 10,000 checks and reads as one: all are allowed, or nothing is spent. It charges one after the other, and
// gives the charges back if one is denied, so that checks of others may be denied in between.
func (l *Limiter) CheckAll(_ context.Context, checks ...limit.Check) (limit.Batch, error) {
	if err := validateCount(len(checks)); err != nil {
		return limit.Batch{}, err
	}
	set, list := l.set.Load(), make([]matched, len(checks))
	receipts, decisions := make([]bucket.Receipt, len(checks)), make([]limit.Decision, len(checks))
	failed := false
	for i := range checks {
		if v := checks[i].Verb; v > limit.VerbRead && v <= limit.VerbReset {
			return limit.Batch{}, at(i, limit.Invalid("verb", v.String()+" cannot be denied or taken back; use Check or CheckEach"))
		}
		if err := l.match(set, &checks[i], &list[i]); err != nil {
			return limit.Batch{}, at(i, err)
		}
		failed = failed || list[i].fails()
	}
	now, spend, retry := l.now(), !failed, time.Duration(0)
	for i := range list {
		m := &list[i]
		if q := m.Request; m.Limits != nil {
			if !spend {
				q.Verb = bucket.Read // it has failed, and its decisions still show the counters
			}
			d, _ := l.table.DoHeld(now, &q, &receipts[i])
			m.decided(d)
		}
		if m.fails() {
			failed, retry = true, max(retry, m.RetryAfter)
		}
	}
	undone := make(map[bucket.Key]bool)
	for i := range list {
		m := &list[i]
		if failed && receipts[i].Charged() {
			l.table.GiveBack(now, &receipts[i])
		}
		// One in shadow mode may have counted as denied, which stays.
		if failed && spend && m.Limits != nil && m.Verb == bucket.Check && (m.Allowed || m.shadow()) {
			undone[m.Key] = true
		}
	}
	for i := range list {
		if m := &list[i]; m.Limits != nil && undone[m.Key] { // the decision was made before or with it
			q := m.Request
			q.Verb = bucket.Read
			m.reread(l.table.Do(now, &q))
		}
		decisions[i] = list[i].finish(failed, retry)
	}
	return limit.NewBatch(decisions), nil
}

func validateCount(n int) error {
	if n < 1 || n > maxChecks {
		return limit.Invalid("checks", fmt.Sprintf("%d checks; want 1 to 10,000", n))
	}
	return nil
}

// at returns err with the index of the check that it is about.
func at(i int, err error) error {
	if e, ok := errors.AsType[*limit.Error](err); ok {
		return &limit.Error{Code: e.Code, Field: fmt.Sprintf("checks[%d].%s", i, e.Field), Message: e.Message}
	}
	return err
}
