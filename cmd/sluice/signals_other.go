//go:build !unix

package main

func (s *signals) notify() {}
