package gossip

import (
	"encoding/binary"
	"errors"
	"log"

	"github.com/hashicorp/memberlist"
)

// Kinds of messages in packets, as memberlist numbers them.
const (
	compoundMessage = 7
	compressMessage = 9
	checksumMessage = 12
)

// checksumSize is what stands before a message with a checksum.
const checksumSize = 5

// runPackets passes packets on from in until stop. Those that are no gossip are dropped: memberlist unpacks what is compressed, without
// a bound, and no node compresses. Packets are dropped when the gate is leaving, too.
func (g *streamGate) runPackets(in <-chan *memberlist.Packet, lines *log.Logger) {
	for {
		select {
		case p := <-in:
			if err := judgePacket(p.Buf, g.encrypted); err != nil {
				lines.Printf("[WARN] %v from=%v", err, p.From)
				continue
			}
			select {
			case g.packets <- p:
			case <-g.leaving:
			}
		case <-g.stopped:
			return
		}
	}
}

// Their texts are in noise.
var (
	errCompressed = errors.New("a compressed packet is not supported")
	errNested     = errors.New("a packet of several messages within another is not supported")
)

// judgePacket says what is wrong with a packet that memberlist should not see. What is encrypted comes from nodes.
func judgePacket(b []byte, encrypted bool) error {
	if encrypted || len(b) == 0 {
		return nil
	}
	if b[0] == checksumMessage && len(b) >= checksumSize {
		b = b[checksumSize:]
	}
	switch {
	case len(b) == 0:
		return nil
	case b[0] == compressMessage:
		return errCompressed
	case b[0] != compoundMessage || len(b) < 2:
		return nil
	}
	lengths, rest := b[2:], []byte(nil)
	n := int(b[1])
	if len(lengths) < 2*n {
		return nil // memberlist says what is wrong
	}
	lengths, rest = lengths[:2*n], lengths[2*n:]
	for ; len(lengths) > 0; lengths = lengths[2:] {
		size := int(binary.BigEndian.Uint16(lengths))
		if size > len(rest) {
			return nil // memberlist stops here
		}
		if size > 0 {
			switch rest[0] {
			case compressMessage:
				return errCompressed
			case compoundMessage:
				return errNested
			}
		}
		rest = rest[size:]
	}
	return nil
}
