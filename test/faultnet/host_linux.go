package faultnet

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// AddHost makes a network namespace of the name, with the address on a device that the switch carries. It needs root and ip.
// FAULT_TCP in the environment names the congestion control of its TCP, which the kernel must allow; without it, it is the machine's.
func (s *Switch) AddHost(namespace string, addr netip.Prefix) error {
	if err := ip("netns", "add", namespace); err != nil {
		return err
	}
	var device *os.File
	err := In(namespace, func() (err error) {
		if device, err = openTun("eth0"); err != nil {
			return err
		}
		if c := os.Getenv("FAULT_TCP"); c != "" {
			return os.WriteFile("/proc/sys/net/ipv4/tcp_congestion_control", []byte(c), 0o644)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, args := range [][]string{
		{"addr", "add", addr.String(), "dev", "eth0"},
		{"link", "set", "eth0", "up"},
		{"link", "set", "lo", "up"},
	} {
		if err := ip(append([]string{"-n", namespace}, args...)...); err != nil {
			device.Close()
			return err
		}
	}
	s.Attach(addr.Addr(), device)
	return nil
}

// RemoveHost ends the processes in a namespace and removes it.
func RemoveHost(namespace string) error {
	out, err := exec.Command("ip", "netns", "pids", namespace).Output()
	if err != nil {
		return fmt.Errorf("processes in %s: %w", namespace, err)
	}
	for _, pid := range strings.Fields(string(out)) {
		var n int
		if _, err := fmt.Sscan(pid, &n); err == nil {
			unix.Kill(n, unix.SIGKILL)
		}
	}
	return ip("netns", "del", namespace)
}

// In runs f on a thread that is in the namespace. Sockets that f makes stay there; goroutines that it starts do not.
func In(namespace string, f func() error) error {
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer own.Close()
	other, err := os.Open("/run/netns/" + namespace)
	if err != nil {
		return err
	}
	defer other.Close()
	// The thread ends with this goroutine if it cannot be brought back.
	runtime.LockOSThread()
	if err := unix.Setns(int(other.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter %s: %w", namespace, err)
	}
	err = f()
	if unix.Setns(int(own.Fd()), unix.CLONE_NEWNET) == nil {
		runtime.UnlockOSThread()
	}
	return err
}

// Dial connects to a TCP address from the namespace.
func Dial(ctx context.Context, namespace, addr string) (conn net.Conn, err error) {
	err = In(namespace, func() (err error) {
		conn, err = new(net.Dialer).DialContext(ctx, "tcp4", addr)
		return err
	})
	return conn, err
}

func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// openTun makes a device of the name in the namespace of the calling thread.
func openTun(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err == nil {
		err = unix.SetNonblock(fd, true) // only now: a device without a name cannot be polled
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("make device %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
