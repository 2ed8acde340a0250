package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/IBM/sarama"
)

func saramaConfig() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V3_9_0_0
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	return config
}

func saramaCreate(bootstrap []string, topic string) error {
	admin, err := sarama.NewClusterAdmin(bootstrap, saramaConfig())
	if err != nil {
		return err
	}
	defer admin.Close()
	return admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 3}, false)
}

func saramaProduce(bootstrap []string, topic string, written []string, config *sarama.Config) error {
	producer, err := sarama.NewSyncProducer(bootstrap, config)
	if err != nil {
		return err
	}
	defer producer.Close()
	messages := make([]*sarama.ProducerMessage, len(written))
	for i, value := range written {
		messages[i] = &sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder(value), Value: sarama.StringEncoder(value)}
	}
	err = producer.SendMessages(messages)
	var failed sarama.ProducerErrors
	if errors.As(err, &failed) {
		return failed[0]
	}
	return err
}

// saramaConsume reads every partition from its beginning until there are as many values as are wanted.
func saramaConsume(ctx context.Context, bootstrap []string, topic string, count int, config *sarama.Config) ([]string, error) {
	consumer, err := sarama.NewConsumer(bootstrap, config)
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	messages := make(chan string)
	for partition := range int32(partitions) {
		claim, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
		if err != nil {
			return nil, err
		}
		defer claim.AsyncClose()
		go func() {
			for message := range claim.Messages() {
				select {
				case messages <- string(message.Value):
				case <-ctx.Done():
				}
			}
		}()
	}
	return gather(ctx, messages, count)
}

func gather(ctx context.Context, messages <-chan string, count int) ([]string, error) {
	got := make([]string, 0, count)
	for len(got) < count {
		select {
		case value := <-messages:
			got = append(got, value)
		case <-ctx.Done():
			return got, fmt.Errorf("after %d of %d records: %w", len(got), count, ctx.Err())
		}
	}
	return got, nil
}

func saramaCodecs(ctx context.Context, bootstrap []string, topic string) error {
	if err := saramaCreate(bootstrap, topic); err != nil {
		return err
	}
	var all []string
	for codec := sarama.CompressionNone; codec <= sarama.CompressionZSTD; codec++ {
		config := saramaConfig()
		config.Producer.Compression = codec
		written := values(codec.String(), 500)
		if err := saramaProduce(bootstrap, topic, written, config); err != nil {
			return fmt.Errorf("%s: %w", codec, err)
		}
		all = append(all, written...)
	}
	got, err := saramaConsume(ctx, bootstrap, topic, len(all), saramaConfig())
	if err != nil {
		return err
	}
	return expect("all codecs", got, all)
}

// member tells how many partitions each session gave it, and hands on what it reads.
type member struct {
	messages chan string
	claimed  chan int
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	claimed := 0
	for _, owned := range session.Claims() {
		claimed += len(owned)
	}
	m.claimed <- claimed
	return nil
}

func (m *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, ok := <-claim.Messages():
			if !ok {
				return nil
			}
			session.MarkMessage(message, "")
			m.messages <- string(message.Value)
		case <-session.Context().Done():
			return nil
		}
	}
}

func saramaGroup(ctx context.Context, bootstrap []string, topic string) error {
	if err := saramaCreate(bootstrap, topic); err != nil {
		return err
	}
	join := func() (*member, sarama.ConsumerGroup, error) {
		config := saramaConfig()
		config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategySticky()}
		group, err := sarama.NewConsumerGroup(bootstrap, topic+"-group", config)
		if err != nil {
			return nil, nil, err
		}
		joined := &member{messages: make(chan string, 1000), claimed: make(chan int, 1000)}
		go func() {
			for !errors.Is(group.Consume(ctx, []string{topic}, joined), sarama.ErrClosedConsumerGroup) && ctx.Err() == nil {
			}
		}()
		return joined, group, nil
	}
	holds := func(m *member, count int) error {
		for {
			select {
			case claimed := <-m.claimed:
				if claimed == count {
					return nil
				}
			case <-ctx.Done():
				return fmt.Errorf("no session with %d partitions: %w", count, ctx.Err())
			}
		}
	}
	first, firstGroup, err := join()
	if err != nil {
		return err
	}
	defer firstGroup.Close()
	if err := holds(first, partitions); err != nil {
		return err
	}
	second, secondGroup, err := join()
	if err != nil {
		return err
	}
	for _, each := range []*member{first, second} {
		if err := holds(each, partitions/2); err != nil {
			return errors.Join(err, secondGroup.Close())
		}
	}
	if err := secondGroup.Close(); err != nil {
		return err
	}
	if err := holds(first, partitions); err != nil {
		return err
	}
	written := values("group", 300)
	if err := saramaProduce(bootstrap, topic, written, saramaConfig()); err != nil {
		return err
	}
	got, err := gather(ctx, first.messages, len(written))
	if err != nil {
		return err
	}
	return expect("the member that stayed", got, written)
}

func saramaTransactions(ctx context.Context, bootstrap []string, topic string) error {
	if err := saramaCreate(bootstrap, topic); err != nil {
		return err
	}
	config := saramaConfig()
	config.Producer.Idempotent = true
	config.Producer.Transaction.ID = topic
	config.Net.MaxOpenRequests = 1
	producer, err := sarama.NewSyncProducer(bootstrap, config)
	if err != nil {
		return err
	}
	defer producer.Close()
	var committed []string
	for round := range 6 {
		commit := round%2 == 0
		if err := producer.BeginTxn(); err != nil {
			return err
		}
		written := values(fmt.Sprintf("%v-%d", commit, round), 50)
		for _, value := range written {
			if _, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(value)}); err != nil {
				return err
			}
		}
		end := producer.AbortTxn
		if commit {
			end, committed = producer.CommitTxn, append(committed, written...)
		}
		if err := end(); err != nil {
			return err
		}
	}
	reader := saramaConfig()
	reader.Consumer.IsolationLevel = sarama.ReadCommitted
	got, err := saramaConsume(ctx, bootstrap, topic, len(committed), reader)
	if err != nil {
		return err
	}
	return expect("read committed", got, committed)
}

func saramaAdmin(_ context.Context, bootstrap []string, topic string) error {
	if err := saramaCreate(bootstrap, topic); err != nil {
		return err
	}
	admin, err := sarama.NewClusterAdmin(bootstrap, saramaConfig())
	if err != nil {
		return err
	}
	defer admin.Close()
	value := "7654321"
	altered := map[string]sarama.IncrementalAlterConfigsEntry{
		"retention.ms": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &value},
	}
	if err := admin.IncrementalAlterConfig(sarama.TopicResource, topic, altered, false); err != nil {
		return err
	}
	entries, err := admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: topic, ConfigNames: []string{"retention.ms"}})
	if err != nil {
		return err
	}
	if len(entries) != 1 || entries[0].Value != value {
		return fmt.Errorf("retention.ms: %v", entries)
	}
	described, err := admin.DescribeTopics([]string{topic})
	if err != nil {
		return err
	}
	if len(described[0].Partitions) != partitions || len(described[0].Partitions[0].Isr) != 3 {
		return fmt.Errorf("topic: %+v", described[0])
	}
	brokers, _, err := admin.DescribeCluster()
	if err != nil {
		return err
	}
	if len(brokers) != 3 {
		return fmt.Errorf("%d brokers", len(brokers))
	}
	if err := admin.DeleteTopic(topic); err != nil {
		return err
	}
	if err := admin.DeleteTopic(topic); !errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
		return fmt.Errorf("a topic that was deleted: %v", err)
	}
	return nil
}
