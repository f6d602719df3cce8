package gossip

import (
	"bytes"
	"compress/lzw"
	"encoding/binary"
	"hash/crc32"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
)

// compressed is a message of so many zeros, compressed as memberlist does it.
func compressed(t testing.TB, size int) []byte {
	t.Helper()
	var packed, b bytes.Buffer
	w := lzw.NewWriter(&packed, lzw.LSB, 8)
	if _, err := w.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	must(t, w.Close())
	b.WriteByte(compressMessage)
	if err := codec.NewEncoder(&b, &codec.MsgpackHandle{}).Encode(struct {
		Algo uint8
		Buf  []byte
	}{0, packed.Bytes()}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// compound is a packet of several messages.
func compound(messages ...[]byte) []byte {
	b := []byte{compoundMessage, byte(len(messages))}
	for _, m := range messages {
		b = binary.BigEndian.AppendUint16(b, uint16(len(m)))
	}
	return append(b, bytes.Join(messages, nil)...)
}

func checked(message []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{checksumMessage}, crc32.ChecksumIEEE(message)), message...)
}

func TestPackets(t *testing.T) {
	bomb, ping := []byte{compressMessage, 1, 2}, []byte{pingMessage, 0x80}
	for _, c := range []struct {
		name      string
		packet    []byte
		encrypted bool
		want      error
	}{
		{"nothing", nil, false, nil},
		{"a ping", ping, false, nil},
		{"several", compound(ping, ping), false, nil},
		{"with a checksum", checked(compound(ping, ping)), false, nil},
		{"compressed", bomb, false, errCompressed},
		{"compressed, with a checksum", checked(bomb), false, errCompressed},
		{"compressed among others", compound(ping, bomb), false, errCompressed},
		{"compressed among others, with a checksum", checked(compound(ping, ping, bomb)), false, errCompressed},
		{"several in several", compound(compound(bomb)), false, errNested},
		{"none of several", compound(), false, nil},
		{"an empty one of several", compound(nil, bomb), false, errCompressed},
		{"cut off", compound(ping, bomb)[:5], false, nil},
		{"encrypted", append([]byte{1}, bomb...), true, nil},
		{"encrypted, by chance like a compressed one", bomb, true, nil},
	} {
		if err := judgePacket(c.packet, c.encrypted); err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

// Compressed packets are dropped unread, and members stay.
func TestCompressedPackets(t *testing.T) {
	a, _ := realPair(t)
	udp, err := net.Dial("udp", a.Addr())
	must(t, err)
	defer udp.Close()
	const rounds, size = 10, 10 << 20
	bomb := compressed(t, size)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	want := a.Stats().Malformed
	for range rounds {
		for _, packet := range [][]byte{bomb, checked(bomb), compound([]byte{pingMessage}, bomb)} {
			want++
			if _, err := udp.Write(packet); err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(patience); a.Stats().Malformed < want; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%d packets were dropped, want %d", a.Stats().Malformed, want)
				}
			}
		}
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 3*rounds*size/10 {
		t.Errorf("%d MiB were allocated for %d packets of %d bytes", took>>20, 3*rounds, len(bomb))
	}
	awaitServing(t, a, 2)
}

func FuzzPacket(f *testing.F) {
	f.Add(compound([]byte{pingMessage}, []byte{compressMessage}))
	f.Add(checked(compound()))
	f.Fuzz(func(t *testing.T, packet []byte) {
		for _, encrypted := range []bool{true, false} {
			if err := judgePacket(packet, encrypted); err != nil && encrypted {
				t.Error(err)
			}
		}
		// What passes is not compressed, in whatever way memberlist takes it apart.
		if len(packet) > 0 && judgePacket(packet, false) == nil && packet[0] == compressMessage {
			t.Error("a compressed packet passes")
		}
	})
}
