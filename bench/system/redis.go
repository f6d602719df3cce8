package system

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/sluicecluster/sluice/bench/process"
	"github.com/sluicecluster/sluice/internal/load"
)

// The clients of Redis that Target has, with their default options.
const (
	RedisRate = "redis_rate" // go-redis/redis_rate
	Rueidis   = "rueidis"    // a Lua script through rueidis, which pipelines concurrent calls
)

// startRedis starts redis-server at addr, without files.
func (s *System) startRedis(ctx context.Context, b *Binaries, addr string) error {
	redis, err := exec.LookPath("redis-server")
	if err != nil {
		return ErrNoRedis
	}
	s.Flags = []string{"--save", "", "--appendonly", "no"}
	args := append([]string{"--bind", host, "--port", port(addr), "--dir", b.scratch}, s.Flags...)
	if err := s.start(process.Spec{Name: "redis", Path: redis, Args: args}); err != nil {
		return err
	}
	return s.listens(ctx, addr)
}

// redisBurst is that of rules/allowed.yaml, as is the rate of one unit an hour.
const redisBurst = 1_000_000_000

// gcra is the generic cell rate algorithm (ITU-T I.371). ARGV has the microseconds per unit and the burst. It returns whether the
// check is allowed, the remaining units, and the microseconds until a retry and until the counter is full.
const gcra = `
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval = tonumber(ARGV[1])
local full = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now) + interval
local left = ARGV[2] * interval - (full - now)
if left < 0 then
  return {0, 0, -left, full - interval - now}
end
redis.call('SET', KEYS[1], string.format('%.0f', full), 'PX', math.ceil((full - now) / 1000))
return {1, math.floor(left / interval), 0, full - now}
`

// redisClient decides the checks of a call one after the other. All callers share it.
type redisClient struct {
	allow func(ctx context.Context, key string) (bool, error)
	close func() error
}

func openRedis(name, addr string, burst int) (*redisClient, error) {
	if name == RedisRate {
		c := redis.NewClient(&redis.Options{Addr: addr})
		limiter, limit := redis_rate.NewLimiter(c), redis_rate.Limit{Rate: 1, Period: time.Hour, Burst: burst}
		return &redisClient{func(ctx context.Context, key string) (bool, error) {
			res, err := limiter.Allow(ctx, key, limit)
			return err == nil && res.Allowed > 0, err
		}, c.Close}, nil
	}
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}})
	if err != nil {
		return nil, err
	}
	script, args := rueidis.NewLuaScript(gcra), []string{strconv.FormatInt(time.Hour.Microseconds(), 10), strconv.Itoa(burst)}
	return &redisClient{func(ctx context.Context, key string) (bool, error) {
		res, err := script.Exec(ctx, c, []string{"gcra:" + key}, args).AsIntSlice()
		if err == nil && len(res) != 4 {
			err = fmt.Errorf("%d figures in the script's result", len(res))
		}
		return err == nil && res[0] == 1, err
	}, func() error { c.Close(); return nil }}, nil
}

// Nodes implements load.Target.
func (*redisClient) Nodes() int { return 1 }

// NewCaller implements load.Target.
func (r *redisClient) NewCaller(int) load.Caller { return r }

// Close implements target.
func (r *redisClient) Close() error { return r.close() }

// Call implements load.Caller.
func (r *redisClient) Call(ctx context.Context, _ int, keys []string, seen *load.Counts) error {
	var all load.Counts
	for _, k := range keys {
		allowed, err := r.allow(ctx, k)
		if err != nil {
			return err
		}
		all.Count(load.Owned, allowed)
	}
	seen.Add(&all)
	return nil
}
