// Package faultnet is a network for tests whose links can be made bad: hosts are network namespaces with one
// tun device each, and a switch in this process carries every packet between them, or loses, delays, doubles
// and slows it by rules. It needs neither netem nor iptables. Rules and the schedule know nothing of devices.
package faultnet

import (
	"encoding/binary"
	"net/netip"
)

// Protocols of IPv4 that have ports.
const (
	TCP = 6
	UDP = 17
)

// packet is what rules look at of an IPv4 packet.
type packet struct {
	from, to         netip.Addr
	protocol         uint8
	fromPort, toPort uint16 // 0 where the protocol has none, and in later fragments
	bytes            int
}

// parse reads the headers of an IPv4 packet. It reports false for anything else.
func parse(b []byte) (packet, bool) {
	if len(b) < 20 || b[0]>>4 != 4 {
		return packet{}, false
	}
	header := int(b[0]&15) * 4
	if header < 20 || len(b) < header {
		return packet{}, false
	}
	p := packet{
		from: netip.AddrFrom4([4]byte(b[12:16])), to: netip.AddrFrom4([4]byte(b[16:20])),
		protocol: b[9], bytes: len(b),
	}
	first := binary.BigEndian.Uint16(b[6:])&0x1fff == 0
	if (p.protocol == TCP || p.protocol == UDP) && first && len(b) >= header+4 {
		p.fromPort, p.toPort = binary.BigEndian.Uint16(b[header:]), binary.BigEndian.Uint16(b[header+2:])
	}
	return p, true
}
