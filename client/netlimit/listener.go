// Package netlimit applies the limits of a limit.Limiter to listeners and streams of bytes: connections, for example per client
// address, and bytes.
package netlimit

import (
	"cmp"
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/sluicecluster/sluice/client/internal/gate"
	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/internal/leaf/pause"
)

// Config configures a Listener.
type Config struct {
	// Domain holds the rules. Required.
	Domain string
	// Keys make the descriptors of a connection, one each. Several are one decision: all are allowed, or nothing is spent.
	// Connections to which none applies are not limited. Required, at least one.
	Keys []Key
	// Amount is how many units a connection spends; nil means 1. Connections of amount 0 or less are not limited.
	Amount func(c net.Conn) int64
	// Skip reports whether a connection is not limited. nil skips none. Like Keys and Amount, it must not block.
	Skip func(c net.Conn) bool
	// MaxWait is how long a connection may wait for the limit, and in a leaky queue. One that would wait longer is denied at once.
	// 0 denies at once whatever would wait.
	MaxWait time.Duration
	// Failed reports whether a connection passes without a decision, since the Limiter has returned an error or taken longer than
	// Timeout, or Asking others are being checked. If not, it is denied as by limit.FailClosed, with the error as Decision.Degraded. nil
	// passes it and logs the error once a minute.
	Failed func(ctx context.Context, err error) bool
	// Denied is called with each denied connection before it is closed, and may write to it. It must not block. nil does nothing.
	Denied func(c net.Conn, d limit.Decision)
	// Timeout is how long a decision may take, waits aside; 0 means a second. The FailurePolicy of a client answers before.
	Timeout time.Duration
	// Asking is how many connections may be checked at a time; 0 means 128. As many may be ready for Accept; further ones
	// wait in the system's queue.
	Asking int
}

func (c *Config) gate() *gate.Gate[net.Conn, Key] {
	return gate.New("netlimit", c.Domain, c.Keys, c.Amount, c.Skip, c.MaxWait, c.Failed, false)
}

// Validate returns an error that names the invalid field of c, or nil. NewListener panics with it: call it first where c comes from
// a configuration file.
func (c *Config) Validate() error {
	if c.Timeout < 0 || c.Asking < 0 {
		return errors.New("netlimit: Timeout and Asking may not be negative")
	}
	return c.gate().Validate()
}

// Listener accepts connections as their limits admit, and closes the others at once. Accept returns connections in the order in
// which they are admitted. A slow decision delays only its own connection.
type Listener struct {
	net.Listener
	config Config
	gate   *gate.Gate[net.Conn, Key]
	ctx    context.Context
	cancel context.CancelFunc
	ready  chan net.Conn // admitted, and not accepted yet
	room   chan struct{} // one for each connection that is being checked or ready
	asking chan struct{} // one for each connection that is being checked
	failed chan error
	group  sync.WaitGroup
	once   sync.Once
}

// NewListener returns a Listener on inner, which its Close closes.
func NewListener(l limit.Limiter, inner net.Listener, c Config) *Listener {
	if err := c.Validate(); err != nil {
		panic(err)
	}
	c.Timeout, c.Asking = cmp.Or(c.Timeout, time.Second), cmp.Or(c.Asking, 128)
	n := &Listener{
		Listener: inner, config: c, gate: c.gate().Open(l, false), failed: make(chan error, 1), asking: make(chan struct{}, c.Asking),
		ready: make(chan net.Conn, 2*c.Asking), room: make(chan struct{}, 2*c.Asking),
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.group.Go(n.accept)
	return n
}

// Accept returns the next connection that was admitted.
func (l *Listener) Accept() (net.Conn, error) {
	if l.ctx.Err() != nil {
		return nil, net.ErrClosed
	}
	select {
	case c := <-l.ready:
		<-l.room
		return c, nil
	case err := <-l.failed:
		l.failed <- err // for the next caller
		return nil, err
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Close closes the listener, and connections that Accept has not returned, and waits for the Listener's goroutines.
func (l *Listener) Close() error {
	err := net.ErrClosed
	l.once.Do(func() {
		l.cancel()
		err = l.Listener.Close()
		l.group.Wait()
		for {
			select {
			case c := <-l.ready:
				c.Close()
			default:
				return
			}
		}
	})
	return err
}

// accept accepts connections until the listener fails, and checks each in a goroutine of its own.
func (l *Listener) accept() {
	for {
		select {
		case l.room <- struct{}{}:
		case <-l.ctx.Done():
			return
		}
		c, err := l.Listener.Accept()
		if err != nil {
			<-l.room
			var temporary interface{ Temporary() bool }
			if errors.As(err, &temporary) && temporary.Temporary() {
				if !pause.For(l.ctx, 10*time.Millisecond) { // out of file descriptors, mostly
					return
				}
				continue
			}
			l.failed <- err
			return
		}
		checks := l.gate.Checks(nil, c)
		if len(checks) == 0 {
			l.ready <- c // has room
			continue
		}
		select {
		case l.asking <- struct{}{}:
			l.group.Go(func() {
				d := l.decide(checks)
				<-l.asking
				l.admitOrClose(c, d)
			})
		default:
			l.admitOrClose(c, l.gate.Fail(l.ctx, errBusy))
		}
	}
}

var errBusy = errors.New("netlimit: as many connections as Config.Asking are being checked")

// decide decides checks within the Timeout.
func (l *Listener) decide(checks []limit.Check) limit.Decision {
	ctx, cancel := context.WithTimeout(l.ctx, l.config.Timeout+l.config.MaxWait)
	defer cancel()
	d, _, err := l.gate.Admit(ctx, checks)
	if err != nil && l.ctx.Err() == nil {
		return l.gate.Fail(l.ctx, err)
	}
	return d // with an error, of a Listener that is closed
}

// admitOrClose makes c ready or closes it. It does not block, since room was reserved.
func (l *Listener) admitOrClose(c net.Conn, d limit.Decision) {
	if d.Allowed && l.ctx.Err() == nil {
		l.ready <- c
		return
	}
	if l.config.Denied != nil && l.ctx.Err() == nil {
		l.config.Denied(c, d)
	}
	c.Close()
	<-l.room
}
