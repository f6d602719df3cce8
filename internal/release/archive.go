package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path"
	"time"
)

// entry is a file of an archive.
type entry struct {
	name string
	// source is where its content is.
	source     string
	executable bool
}

func (e entry) mode() int64 {
	if e.executable {
		return 0o755
	}
	return 0o644
}

// archive writes entries in their order below the folder dir, of nobody in particular and all of one time, so that
// equal files make equal archives.
func archive(w io.Writer, format, dir string, entries []entry, at time.Time) error {
	at = at.UTC().Truncate(time.Second)
	switch format {
	case "tar.gz":
		return tarball(w, dir, entries, at)
	case "zip":
		return zipped(w, dir, entries, at)
	}
	return fmt.Errorf("there is no archive format %q", format)
}

func tarball(w io.Writer, dir string, entries []entry, at time.Time) error {
	z, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	t := tar.NewWriter(z)
	for _, e := range entries {
		data, err := os.ReadFile(e.source)
		if err != nil {
			return err
		}
		if err := t.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: path.Join(dir, e.name), Size: int64(len(data)), Mode: e.mode(), ModTime: at,
			Format: tar.FormatUSTAR,
		}); err != nil {
			return err
		}
		if _, err := t.Write(data); err != nil {
			return err
		}
	}
	if err := t.Close(); err != nil {
		return err
	}
	return z.Close()
}

func zipped(w io.Writer, dir string, entries []entry, at time.Time) error {
	z := zip.NewWriter(w)
	for _, e := range entries {
		data, err := os.ReadFile(e.source)
		if err != nil {
			return err
		}
		h := &zip.FileHeader{Name: path.Join(dir, e.name), Method: zip.Deflate, Modified: at}
		h.SetMode(os.FileMode(e.mode()))
		f, err := z.CreateHeader(h)
		if err != nil {
			return err
		}
		if _, err := f.Write(data); err != nil {
			return err
		}
	}
	return z.Close()
}
