// Package transcripts has whole conversations of cluster/quorum and cluster/handoff as text: testdata/*.txt, one a file. Each command
// is followed by the messages that it leads to and by what changes at the processes. The files are documentation and tests:
//
//	go test ./test/transcripts            # compares
//	go test ./test/transcripts -rewrite   # writes what happens now; read the diff
//
// A line is the time in seconds, the sender, the receivers and the message, or a process and what has changed there. a1 is the first
// process of node a, a2 the one after a restart. An epoch is written takeovers.handoffs@owner, a state epoch#change. Heartbeats,
// acknowledgements and full lists of what a node owns are left out where they repeat what was said before.
package transcripts

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/message"
)

func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		c := newSimulated()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			words := []string{d.Cmd}
			for _, a := range d.CmdArgs {
				words = append(words, a.Key)
			}
			var out strings.Builder
			for i, command := range append([]string{strings.Join(words, " ")}, strings.Split(d.Input, "\n")...) {
				if i > 0 && strings.TrimSpace(command) == "" {
					continue
				}
				said, err := c.do(strings.Fields(command))
				if err != nil {
					d.Fatalf(t, "%s: %v", command, err)
				}
				out.WriteString(c.take() + said)
			}
			if out.Len() == 0 {
				return "ok"
			}
			return out.String()
		})
	})
}

// do carries out a command, and returns what it says beside the lines of the transcript.
func (c *simulated) do(words []string) (string, error) {
	command, args := words[0], words[1:]
	if f, ok := commands[command]; ok {
		return f(c, args)
	}
	return "", fmt.Errorf("unknown command %q", command)
}

var commands = map[string]func(c *simulated, args []string) (string, error){
	// partitions N: how many there are; to be the first command. Each has one counter of 100.
	"partitions": func(c *simulated, args []string) (string, error) {
		n, err := number(args, 0)
		if err != nil {
			return "", err
		}
		if n < 1 || len(c.names) > 0 {
			return "", errors.New("want a number of partitions, before the first start")
		}
		c.divide(n)
		return "", nil
	},
	// ring pN names: the ring assigns the partition to the first of these that serves. Nodes that are not named come last, by name.
	"ring": func(c *simulated, args []string) (string, error) {
		p, err := c.partition(args, 0)
		if err != nil {
			return "", err
		}
		c.ring[p] = args[1:]
		return "", nil
	},
	// window pN N D: the partition's counter has N in a window of D, aligned to the clock.
	"window": func(c *simulated, args []string) (string, error) {
		p, err := c.partition(args, 0)
		if err != nil {
			return "", err
		}
		n, err := number(args, 1)
		if err != nil {
			return "", err
		}
		d, err := duration(args, 2)
		if err != nil {
			return "", err
		}
		return "", c.limit(p, bucket.Limit{Algorithm: bucket.FixedWindow, Count: int64(n), Period: d})
	},
	// clock NAME D: the clock of the node's next process is wrong by D.
	"clock": func(c *simulated, args []string) (string, error) {
		d, err := duration(args, 1)
		if err != nil {
			return "", err
		}
		c.clocks[args[0]] = d
		return "", nil
	},
	// disk NAMES: the nodes have data directories. disk NAME CLUSTER vN NAMES: the node's has a voter set.
	"disk": func(c *simulated, args []string) (string, error) {
		if len(args) > 2 && strings.HasPrefix(args[2], "v") {
			version, err := strconv.ParseUint(args[2][1:], 10, 64)
			if err != nil {
				return "", err
			}
			c.disks[args[0]] = &message.Record{Set: message.Set{ID: args[1], Version: version, Members: args[3:]}}
			return "", nil
		}
		for _, name := range args {
			c.disks[name] = new(message.Record)
		}
		return "", nil
	},
	// start NAMES: each node starts a process. Nodes that are started together for the first time found a voter set.
	"start": func(c *simulated, args []string) (string, error) {
		for _, name := range args {
			if _, ok := c.expect[name]; !ok {
				c.expect[name] = len(args)
			}
		}
		for _, name := range args {
			c.start(name)
		}
		return "", nil
	},
	// join NAMES: each node starts a process that founds no voter set.
	"join": func(c *simulated, args []string) (string, error) {
		for _, name := range args {
			c.expect[name] = 0
			c.start(name)
		}
		return "", nil
	},
	// leave NAMES: each process hands off what it owns, leaves the voter set, and ends.
	"leave": each(func(c *simulated, p *process) string {
		c.say(p, "leaving")
		p.state = member.Leaving
		return ""
	}),
	// crash NAMES: the processes end without a word.
	"crash": each(func(c *simulated, p *process) string {
		c.say(p, "crashed")
		p.end()
		return ""
	}),
	// cut NAMES | NAMES: nothing arrives between the two groups any more.
	"cut": func(c *simulated, args []string) (string, error) {
		i := slices.Index(args, "|")
		if i < 1 || i == len(args)-1 {
			return "", errors.New("want two groups, with | between them")
		}
		for _, a := range args[:i] {
			for _, b := range args[i+1:] {
				c.cut[[2]string{a, b}], c.cut[[2]string{b, a}] = true, true
			}
		}
		return "", nil
	},
	// heal: ends all cuts.
	"heal": func(c *simulated, _ []string) (string, error) {
		clear(c.cut)
		return "", nil
	},
	// drop next KIND from NAME to NAME: the next message of that kind gets lost.
	"drop": func(c *simulated, args []string) (string, error) {
		if len(args) != 6 || args[0] != "next" || args[2] != "from" || args[4] != "to" || !slices.Contains(kinds, args[1]) {
			return "", fmt.Errorf("want: drop next KIND from NAME to NAME, with a kind of %s", strings.Join(kinds, ", "))
		}
		c.drops = append(c.drops, drop{args[1], args[3], args[5]})
		return "", nil
	},
	// charge pN N at NAME: the node is asked for N units, one check each.
	"charge": func(c *simulated, args []string) (string, error) {
		part, err := c.partition(args, 0)
		if err != nil {
			return "", err
		}
		n, err := number(args, 1)
		if err != nil {
			return "", err
		}
		if len(args) != 4 || args[2] != "at" || c.alive(args[3]) == nil {
			return "", errors.New("want: charge pN N at NAME, of a node that runs")
		}
		p := c.alive(args[3])
		c.say(p, "%s", p.charge(part, n))
		return "", nil
	},
	// run D: time passes. run until TEXT: until a line has the text, a minute at most. quietly, at the end: nothing is told of it.
	"run": func(c *simulated, args []string) (string, error) {
		quietly := len(args) > 1 && args[len(args)-1] == "quietly"
		if quietly {
			args = args[:len(args)-1]
		}
		if len(args) > 1 && args[0] == "until" {
			text := strings.Join(args[1:], " ")
			if !c.pass(time.Minute, func() bool { return c.mentions(text) }) {
				return "", errors.New("a minute has passed without it")
			}
		} else {
			d, err := duration(args, 0)
			if err != nil {
				return "", err
			}
			c.pass(d, nil)
		}
		if quietly {
			c.lines = nil
		}
		return "", nil
	},
	// show: how the cluster stands.
	"show": func(c *simulated, _ []string) (string, error) { return c.show(), nil },
}

// each is a command for nodes that run.
func each(f func(c *simulated, p *process) string) func(*simulated, []string) (string, error) {
	return func(c *simulated, args []string) (out string, _ error) {
		for _, name := range args {
			p := c.alive(name)
			if p == nil {
				return "", fmt.Errorf("node %q does not run", name)
			}
			out += f(c, p)
		}
		return out, nil
	}
}

// alive returns the first process of a name that runs, nil if there is none.
func (c *simulated) alive(name string) *process {
	for _, p := range c.running() {
		if p.self.Name == name {
			return p
		}
	}
	return nil
}

func number(args []string, i int) (int, error) {
	if i >= len(args) {
		return 0, errors.New("a number is missing")
	}
	return strconv.Atoi(args[i])
}

func duration(args []string, i int) (time.Duration, error) {
	if i >= len(args) {
		return 0, errors.New("a duration is missing")
	}
	return time.ParseDuration(args[i])
}

func (c *simulated) partition(args []string, i int) (int, error) {
	if i >= len(args) || !strings.HasPrefix(args[i], "p") {
		return 0, errors.New("a partition is missing, for example p0")
	}
	p, err := strconv.Atoi(args[i][1:])
	if err == nil && (p < 0 || p >= c.partitions) {
		err = fmt.Errorf("there are %d partitions", c.partitions)
	}
	return p, err
}
