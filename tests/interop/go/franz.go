package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const partitions = 6

func franz(bootstrap []string, opts ...kgo.Opt) (*kgo.Client, *kadm.Client, error) {
	client, err := kgo.NewClient(append(opts, kgo.SeedBrokers(bootstrap...))...)
	if err != nil {
		return nil, nil, err
	}
	return client, kadm.NewClient(client), nil
}

// franzProduce creates the topic and writes the values with acks=all.
func franzProduce(ctx context.Context, bootstrap []string, topic string, written []string, opts ...kgo.Opt) error {
	client, admin, err := franz(bootstrap, opts...)
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := admin.CreateTopic(ctx, partitions, 3, nil, topic); err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return err
	}
	records := make([]*kgo.Record, len(written))
	for i, value := range written {
		records[i] = &kgo.Record{Topic: topic, Key: []byte(value), Value: []byte(value)}
		records[i].Headers = []kgo.RecordHeader{{Key: "h", Value: []byte(value)}}
	}
	return client.ProduceSync(ctx, records...).FirstErr()
}

// franzConsume polls until it has as many values as are wanted.
func franzConsume(ctx context.Context, client *kgo.Client, count int) ([]string, error) {
	var got []string
	for len(got) < count {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return got, fmt.Errorf("after %d of %d records: %w", len(got), count, err)
		}
		for record := range fetches.RecordsAll() {
			if string(record.Headers[0].Value) != string(record.Value) {
				return got, fmt.Errorf("header %q of %q", record.Headers[0].Value, record.Value)
			}
			got = append(got, string(record.Value))
		}
	}
	return got, nil
}

func franzCodecs(ctx context.Context, bootstrap []string, topic string) error {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	var all []string
	for name, codec := range codecs {
		written := values(name, 500)
		if err := franzProduce(ctx, bootstrap, topic, written, kgo.ProducerBatchCompression(codec)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, written...)
	}
	client, _, err := franz(bootstrap, kgo.ConsumeTopics(topic))
	if err != nil {
		return err
	}
	defer client.Close()
	got, err := franzConsume(ctx, client, len(all))
	if err != nil {
		return err
	}
	return expect("all codecs", got, all)
}

// franzGroup: a second member takes its share, leaves, and the first goes on where the group was.
func franzGroup(nextGeneration bool) scenario {
	return func(ctx context.Context, bootstrap []string, topic string) error {
		if err := franzProduce(ctx, bootstrap, topic, nil); err != nil {
			return err
		}
		group := topic + "-group"
		member := func() (*kgo.Client, error) {
			client, _, err := franz(bootstrap, kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
				kgo.Balancers(kgo.StickyBalancer()), kgo.DisableAutoCommit(),
				kgo.WithContext(context.WithValue(ctx, optIn(nextGeneration), true)))
			return client, err
		}
		first, err := member()
		if err != nil {
			return err
		}
		defer first.Close()
		second, err := member()
		if err != nil {
			return err
		}
		defer second.Close()
		_, admin, err := franz(bootstrap)
		if err != nil {
			return err
		}
		defer admin.Close()

		if err := settled(ctx, admin, group, 2, nextGeneration, first, second); err != nil {
			return err
		}
		before := values("before", 300)
		if err := franzProduce(ctx, bootstrap, topic, before); err != nil {
			return err
		}
		got, err := consumeTogether(ctx, len(before), first, second)
		if err != nil {
			return err
		}
		if err := expect("two members", got, before); err != nil {
			return err
		}
		for _, client := range []*kgo.Client{first, second} {
			if err := client.CommitUncommittedOffsets(ctx); err != nil {
				return err
			}
		}
		second.LeaveGroup()
		if err := settled(ctx, admin, group, 1, nextGeneration, first); err != nil {
			return err
		}
		after := values("after", 300)
		if err := franzProduce(ctx, bootstrap, topic, after); err != nil {
			return err
		}
		if got, err = franzConsume(ctx, first, len(after)); err != nil {
			return err
		}
		if err := expect("the member that stayed", got, after); err != nil {
			return err
		}
		if err := first.CommitUncommittedOffsets(ctx); err != nil {
			return err
		}
		lags, err := admin.Lag(ctx, group)
		if err != nil {
			return err
		}
		if lag := lags[group].Lag.Total(); lag != 0 {
			return fmt.Errorf("lag %d after everything was committed", lag)
		}
		return nil
	}
}

// optIn is the name by which franz-go is asked for the protocol of KIP-848.
func optIn(nextGeneration bool) string {
	if nextGeneration {
		return "opt_in_kafka_next_gen_balancer_beta"
	}
	return "classic"
}

// settled waits until the group has its members, and each of them has partitions.
func settled(ctx context.Context, admin *kadm.Client, group string, members int, nextGeneration bool, polled ...*kgo.Client) error {
	for ctx.Err() == nil {
		for _, client := range polled {
			client.PollRecords(nil, 0) // nothing is there yet; this lets a rebalance go on
		}
		var holding int
		if nextGeneration {
			described, err := admin.DescribeConsumerGroups(ctx, group)
			if err != nil {
				return err
			}
			for _, member := range described[group].Members {
				if len(member.Assignment.Topics()) > 0 && member.MemberEpoch == described[group].AssignmentEpoch {
					holding++
				}
			}
		} else {
			described, err := admin.DescribeGroups(ctx, group)
			if err != nil {
				return err
			}
			if described[group].State == "Stable" {
				holding = len(described[group].Members)
			}
		}
		if holding == members {
			return nil
		}
	}
	return fmt.Errorf("group %s has not settled: %w", group, ctx.Err())
}

func consumeTogether(ctx context.Context, count int, clients ...*kgo.Client) ([]string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type polled struct {
		client int
		values []string
	}
	found := make(chan polled)
	for i, client := range clients {
		go func() {
			for ctx.Err() == nil {
				var got []string
				for record := range client.PollFetches(ctx).RecordsAll() {
					got = append(got, string(record.Value))
				}
				select {
				case found <- polled{i, got}:
				case <-ctx.Done():
				}
			}
		}()
	}
	var got []string
	busy := map[int]bool{}
	for len(got) < count {
		select {
		case some := <-found:
			got = append(got, some.values...)
			busy[some.client] = busy[some.client] || len(some.values) > 0
		case <-ctx.Done():
			return got, fmt.Errorf("after %d of %d records: %w", len(got), count, ctx.Err())
		}
	}
	if len(busy) != len(clients) {
		return got, fmt.Errorf("only %d of %d members were given records", len(busy), len(clients))
	}
	return got, nil
}

func franzTransactions(ctx context.Context, bootstrap []string, topic string) error {
	if err := franzProduce(ctx, bootstrap, topic, nil); err != nil {
		return err
	}
	client, _, err := franz(bootstrap, kgo.TransactionalID(topic), kgo.DefaultProduceTopic(topic))
	if err != nil {
		return err
	}
	defer client.Close()
	var committed []string
	for round := range 6 {
		commit := kgo.TransactionEndTry(round%2 == 0)
		if err := client.BeginTransaction(); err != nil {
			return err
		}
		written := values(fmt.Sprintf("%v-%d", commit, round), 50)
		for _, value := range written {
			client.Produce(ctx, &kgo.Record{Value: []byte(value), Headers: []kgo.RecordHeader{{Key: "h", Value: []byte(value)}}}, nil)
		}
		if err := client.Flush(ctx); err != nil {
			return err
		}
		if err := client.EndTransaction(ctx, commit); err != nil {
			return err
		}
		if commit {
			committed = append(committed, written...)
		}
	}
	reader, _, err := franz(bootstrap, kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		return err
	}
	defer reader.Close()
	got, err := franzConsume(ctx, reader, len(committed))
	if err != nil {
		return err
	}
	return expect("read committed", got, committed)
}

// franzExactlyOnce: consume, transform, produce; every other transaction is aborted, and its input read again.
func franzExactlyOnce(ctx context.Context, bootstrap []string, topic string) error {
	input, output := topic+"-in", topic+"-out"
	written := values("input", 400)
	if err := franzProduce(ctx, bootstrap, input, written); err != nil {
		return err
	}
	if err := franzProduce(ctx, bootstrap, output, nil); err != nil {
		return err
	}
	session, err := kgo.NewGroupTransactSession(kgo.SeedBrokers(bootstrap...), kgo.TransactionalID(topic),
		kgo.ConsumerGroup(topic), kgo.ConsumeTopics(input), kgo.DefaultProduceTopic(output),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.RequireStableFetchOffsets())
	if err != nil {
		return err
	}
	defer session.Close()
	for done, round := 0, 0; done < len(written); round++ {
		fetches := session.PollRecords(ctx, 100)
		if err := fetches.Err(); err != nil {
			return err
		}
		if err := session.Begin(); err != nil {
			return err
		}
		for record := range fetches.RecordsAll() {
			session.Produce(ctx, &kgo.Record{Value: record.Value, Headers: record.Headers}, nil)
		}
		committed, err := session.End(ctx, kgo.TransactionEndTry(round%2 == 1))
		if err != nil {
			return err
		}
		if committed {
			done += fetches.NumRecords()
		}
	}
	reader, _, err := franz(bootstrap, kgo.ConsumeTopics(output), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		return err
	}
	defer reader.Close()
	got, err := franzConsume(ctx, reader, len(written))
	if err != nil {
		return err
	}
	return expect("each input once", got, written)
}

func franzAdmin(ctx context.Context, bootstrap []string, topic string) error {
	if err := franzProduce(ctx, bootstrap, topic, values("admin", 60)); err != nil {
		return err
	}
	client, admin, err := franz(bootstrap)
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := admin.UpdatePartitions(ctx, partitions+2, topic); err != nil {
		return err
	}
	if _, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: "retention.ms", Value: kadm.StringPtr("1234567")}}, topic); err != nil {
		return err
	}
	configs, err := admin.DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(configs[0].Configs, func(c kadm.Config) bool { return c.Key == "retention.ms" })
	if at < 0 || configs[0].Configs[at].MaybeValue() != "1234567" {
		return fmt.Errorf("retention.ms was not altered")
	}
	ends, err := admin.ListEndOffsets(ctx, topic)
	if err != nil {
		return err
	}
	total := int64(0)
	ends.Each(func(end kadm.ListedOffset) { total += end.Offset })
	if total != 60 || len(ends[topic]) != partitions+2 {
		return fmt.Errorf("%d records in %d partitions", total, len(ends[topic]))
	}
	if _, err := admin.DeleteRecords(ctx, ends.Offsets()); err != nil {
		return err
	}
	starts, err := admin.ListStartOffsets(ctx, topic)
	if err != nil {
		return err
	}
	if starts[topic][0].Offset != ends[topic][0].Offset {
		return fmt.Errorf("records were not deleted: start is %d", starts[topic][0].Offset)
	}
	if _, err := admin.DeleteTopic(ctx, topic); err != nil {
		return err
	}
	_, err = admin.DeleteTopic(ctx, topic)
	if !errors.Is(err, kerr.UnknownTopicOrPartition) {
		return fmt.Errorf("a topic that was deleted: %v", err)
	}
	return nil
}
