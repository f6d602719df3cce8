// Package rawconn makes TCP connections whose reads and writes Go's scheduler does not hear of.
//
// A system call of the net package tells the scheduler when it begins and ends, since it might block. The runtime's
// monitor, which looks every 20 µs while work is waiting, then takes the processor of a call that lasts longer for another
// thread; and a write to a loopback or a fast network, in which the kernel does the receiver's work too, often does. Sockets that
// the net package has opened never block: they say that they are not ready, and the goroutine waits in the poller. So here
// the call is made without telling anybody, as in the kernel's and the runtime's own hot paths, and no thread is woken for
// nothing. docs/adr/0032-system-calls-the-scheduler-does-not-hear-of.md has what it is worth.
//
// Everything else is as with *net.TCPConn: deadlines, Close, errors. Where there is no such
// system call (other systems than Linux, and under the race detector, which wants to see reads and writes) connections are
// what they were.
package rawconn
