package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"time"
)

// Container images are written by hand, as the image format of the Open Container Initiative has it: there is one layer with
// one file, and so they come out the same each time, for any architecture, without an engine.

const (
	layerType    = "application/vnd.oci.image.layer.v1.tar+gzip"
	configType   = "application/vnd.oci.image.config.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	indexType    = "application/vnd.oci.image.index.v1+json"
)

// descriptor names a blob of an image.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

// runConfig says how a container runs: what the Dockerfile says, which a test holds it against.
type runConfig struct {
	User         string              `json:"User"`
	Env          []string            `json:"Env"`
	ExposedPorts map[string]struct{} `json:"ExposedPorts"`
	Entrypoint   []string            `json:"Entrypoint"`
	Cmd          []string            `json:"Cmd"`
	Labels       map[string]string   `json:"Labels"`
}

func howToRun(version string) runConfig {
	return runConfig{
		User:         "65532:65532",
		Env:          []string{"SLUICE_BIND=0.0.0.0"},
		ExposedPorts: map[string]struct{}{"7460/tcp": {}, "7461/tcp": {}, "7462/tcp": {}, "7463/tcp": {}, "7463/udp": {}},
		Entrypoint:   []string{"/sluice"},
		Cmd:          []string{"serve"},
		Labels:       map[string]string{"org.opencontainers.image.version": version, "org.opencontainers.image.licenses": "Apache-2.0"},
	}
}

type imageConfig struct {
	platform
	Created time.Time `json:"created"`
	Config  runConfig `json:"config"`
	RootFS  struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// image writes a container image of the binary for t to file: an archive that `docker load`, and whatever reads OCI
// archives, can take. It is called sluice, with the version as its tag.
func image(file, binary string, t Target, version string, at time.Time) error {
	at = at.UTC().Truncate(time.Second)
	data, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	inner, err := tarOf([]blob{{"sluice", data, 0o755}}, at)
	if err != nil {
		return err
	}
	var layer bytes.Buffer
	z, err := gzip.NewWriterLevel(&layer, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := z.Write(inner); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}

	i := &imageWriter{}
	config := imageConfig{platform: platform{t.Arch, t.OS}, Created: at, Config: howToRun(version)}
	config.RootFS.Type, config.RootFS.DiffIDs = "layers", []string{digestOf(inner)}
	layerAt, configAt := i.add(layerType, layer.Bytes()), i.addJSON(configType, config)
	manifestAt := i.addJSON(manifestType, map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": configAt, "layers": []descriptor{layerAt},
	})
	manifestAt.Platform = &config.platform
	// A tag has no plus.
	tag := strings.ReplaceAll(version, "+", "-")
	manifestAt.Annotations = map[string]string{"org.opencontainers.image.ref.name": tag}
	i.file("index.json", map[string]any{"schemaVersion": 2, "mediaType": indexType, "manifests": []descriptor{manifestAt}})
	i.file("oci-layout", map[string]string{"imageLayoutVersion": "1.0.0"})
	i.file("manifest.json", []map[string]any{{
		"Config": blobPath(configAt), "RepoTags": []string{"sluice:" + tag}, "Layers": []string{blobPath(layerAt)},
	}})
	if i.err != nil {
		return i.err
	}
	outer, err := tarOf(i.files, at)
	if err != nil {
		return err
	}
	return os.WriteFile(file, outer, 0o644)
}

// imageWriter gathers the files of an image.
type imageWriter struct {
	files []blob
	err   error
}

func (i *imageWriter) add(mediaType string, data []byte) descriptor {
	d := descriptor{MediaType: mediaType, Digest: digestOf(data), Size: len(data)}
	i.files = append(i.files, blob{blobPath(d), data, 0o644})
	return d
}

func (i *imageWriter) addJSON(mediaType string, value any) descriptor {
	data, err := json.Marshal(value)
	i.err = errors.Join(i.err, err)
	return i.add(mediaType, data)
}

func (i *imageWriter) file(name string, value any) {
	data, err := json.Marshal(value)
	i.err = errors.Join(i.err, err)
	i.files = append(i.files, blob{name, data, 0o644})
}

func blobPath(d descriptor) string {
	return path.Join("blobs", strings.Replace(d.Digest, ":", "/", 1))
}

func digestOf(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }

// blob is a file of an image or of its layer.
type blob struct {
	name string
	data []byte
	mode int64
}

func tarOf(files []blob, at time.Time) ([]byte, error) {
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	for _, f := range files {
		if err := t.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: f.name, Size: int64(len(f.data)), Mode: f.mode, ModTime: at, Format: tar.FormatUSTAR,
		}); err != nil {
			return nil, err
		}
		if _, err := t.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := t.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
