package main

import (
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/sluice-project/sluice/client"
)

// tokenVariable has a token for the commands that ask a node.
const tokenVariable = "SLUICE_TOKEN"

// tokenFlagNames are the flags of the commands that ask a node.
var tokenFlagNames = []string{"token-file", "token-in-clear"}

// tokenFlags say which token a command shows.
type tokenFlags struct {
	file    string
	inClear bool
}

func (f *tokenFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.file, "token-file", "", "`file` with the token to show; without it, the variable "+tokenVariable+" has the token, if any")
	flags.BoolVar(&f.inClear, "token-in-clear", false, "show the token without TLS to others than this machine too, where everybody on the way can read it")
}

// source returns nil where there is no token.
func (f *tokenFlags) source() client.TokenSource {
	if f.file != "" {
		return client.TokenFile(f.file)
	}
	if token, _ := lookupEnv(tokenVariable); token != "" {
		return client.Token(token)
	}
	return nil
}

// dialOptions are those that show the token.
func (f *tokenFlags) dialOptions() []grpc.DialOption {
	if source := f.source(); source != nil {
		return []grpc.DialOption{grpc.WithPerRPCCredentials(client.TokenCredentials(source, f.inClear))}
	}
	return nil
}
