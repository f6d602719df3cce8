package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	out := flag.String("out", "docs/img", "`folder` to write the pictures to")
	flag.Parse()
	if err := write(*out); err != nil {
		fmt.Fprintln(os.Stderr, "plots:", err)
		os.Exit(1)
	}
}

// write draws all pictures into a folder.
func write(folder string) error {
	for name, draw := range pictures {
		data, err := draw()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(folder, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// pictures are all there are, by file name.
var pictures = map[string]func() ([]byte, error){
	"same-demand.svg":    sameDemand,
	"admitted-spike.svg": admittedSpike,
}
