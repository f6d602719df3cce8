package sim

// Without leaves guards out, to show what each is for.
type Without struct {
	// right: checks do not ask whether the process has the right. seal: nor for the
	// seal; whom the ring names decides. gate: no gate.
	right, seal, gate bool
	// expect: every process founds a set by itself. disk: the disk is given the set every 10 s, and a version is
	// acknowledged before. proof: nobody says that it has no quorum.
	expect, disk, proof bool
	// early: a process that has just started may give shares. grace: it waits for nobody when it wakes. saved: what is on disk of
	// deferred charges is not read. voters: a share is all that was left.
	early, grace, saved, voters bool
}
