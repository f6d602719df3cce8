package main

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	root := flags.String("root", ".", "folder of the source")
	out := flags.String("out", "", "folder for the files, empty or not there")
	version := flags.String("version", "", "version of the release, without spaces")
	at := flags.String("time", "", "time of the commit, in Unix seconds")
	list := flags.String("targets", "", "systems to build for, as linux/amd64,darwin/arm64; all by default")
	materials := flags.Bool("materials", true, "write a bill of materials for each binary")
	if err := flags.Parse(args); err != nil {
		return err
	}
	seconds, err := strconv.ParseInt(*at, 10, 64)
	if err != nil || seconds <= 0 {
		return fmt.Errorf("-time: %q are no Unix seconds", *at)
	}
	chosen, err := parseTargets(*list)
	if err != nil {
		return err
	}
	r := Release{Root: *root, Out: *out, Version: *version, Time: time.Unix(seconds, 0), Targets: chosen}
	if *out == "" {
		return fmt.Errorf("-out: name a folder")
	}
	if *materials {
		r.Materials = cyclonedx(*root, *version)
	}
	return r.Build()
}
