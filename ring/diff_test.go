package ring

// Move is one partition that changes its owner.
type Move struct {
	Partition int
	// From and To are names of members; "" where a table has no members.
	From, To string
}

// Diff lists the partitions whose owner differs between two tables, by
// partition, as names: a member's index may differ from table to table. A nil
// table stands for one without members. Partitions that only one of the tables
// has, which happens only between different Configs, are listed too.
func Diff(from, to *Table) []Move {
	if from == nil {
		from = &Table{}
	}
	if to == nil {
		to = &Table{}
	}
	var moves []Move
	for p := range max(from.Partitions(), to.Partitions()) {
		if a, b := from.Owner(p), to.Owner(p); a != b {
			moves = append(moves, Move{Partition: p, From: a, To: b})
		}
	}
	return moves
}
