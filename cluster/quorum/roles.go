package quorum

import (
	"cmp"
	"hash/fnv"
	"slices"

	"github.com/sluicecluster/sluice/internal/message"
)

// With Config.Roles the members are regions. Each member of the list of regions has a role, by its own name, which only one region may
// play at a time: to decide the keys whose home it is. A member plays its own role unless the set has another one for it. A version that
// removes a member gives the roles that it played to others. They come back only when they are passed on.

// Pass makes this process ask for role, which this process plays, in the version after Set. It must not play the role any more when it calls
// Pass, until it knows a later version. Where that one does not have the role, it is asked for in the next one by another call only.
func (m *Machine) Pass(now int64, role message.Role) {
	m.now = now
	if role != m.pass {
		m.pass, m.lastHeartbeat = role, nil
		m.sendHeartbeats(now)
	}
}

// withRole returns the next version after s, in which role.At plays role.Of.
func withRole(s message.Set, role message.Role) message.Set {
	next := message.Set{ID: s.ID, Version: s.Version + 1, Members: s.Members}
	next.Roles = slices.DeleteFunc(slices.Clone(s.Roles), func(r message.Role) bool { return r.Of == role.Of })
	i, _ := slices.BinarySearchFunc(next.Roles, role, message.Role.Compare)
	next.Roles = slices.Insert(next.Roles, i, role)
	return next
}

// reassign gives the roles that name, who is removed in next, plays to the remaining members, by rendezvous hashing (Thaler and
// Ravishankar, 1998): all of them would choose the same.
func (m *Machine) reassign(next message.Set, name string) message.Set {
	if !m.c.Roles || len(next.Members) == 0 {
		return next
	}
	roles := []string{name}
	for _, r := range next.Roles {
		if r.At == name {
			roles = append(roles, r.Of)
		}
	}
	version := next.Version
	for _, of := range roles {
		if of == name && next.Plays(of) != name {
			continue // another plays it already
		}
		at := slices.MaxFunc(next.Members, func(a, b string) int { return cmp.Compare(score(of, a), score(of, b)) })
		next = withRole(next, message.Role{Of: of, At: at})
	}
	next.Version = version
	return next
}

func score(role, member string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(role + "/" + member)) // never fails
	return h.Sum64()
}

// passed returns the next version if a member wishes to pass on a role that it plays.
func (m *Machine) passed() (message.Set, bool) {
	for _, name := range m.set.Members {
		role := m.pass
		if name != m.c.Self.Name {
			p := m.latest(name)
			if p == nil {
				continue
			}
			role = p.pass
		}
		if had, _ := m.set.Role(role.Of); role.Of != "" && had.At == name && had != role && m.set.Has(role.At) {
			return withRole(m.set, role), true
		}
	}
	return message.Set{}, false
}
