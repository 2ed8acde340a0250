import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

/** The Java client as its users use it. {@code Client BOOTSTRAP SCENARIO TOPIC}; prints OK, or ends with a stack trace. */
public final class Client {
    private final String bootstrap;
    private final String topic;
    private final Admin admin;

    private Client(String bootstrap, String topic) {
        this.bootstrap = bootstrap;
        this.topic = topic;
        this.admin = Admin.create(Map.of("bootstrap.servers", bootstrap, "default.api.timeout.ms", "30000"));
    }

    public static void main(String[] args) throws Exception {
        Client client = new Client(args[0], args[2]);
        try {
            client.run(args[1]);
            System.out.println("OK");
        } finally {
            client.admin.close(Duration.ofSeconds(5));
        }
        System.exit(0);
    }

    private void run(String scenario) throws Exception {
        switch (scenario) {
            case "produce" -> produce();
            case "transactions" -> transactions();
            case "classic" -> groups("classic");
            case "consumer" -> groups("consumer");
            case "static" -> staticMembers();
            case "cooperative" -> cooperative();
            case "topics" -> topics();
            case "configs" -> configs();
            case "offsets" -> offsets();
            case "partitions" -> partitions();
            case "groups" -> groupAdministration();
            case "hanging" -> hanging();
            default -> throw new IllegalArgumentException(scenario);
        }
    }

    // ---- helpers ----------------------------------------------------------------------------------------------------

    private static void check(boolean condition, Object what) {
        if (!condition) {
            throw new AssertionError(String.valueOf(what));
        }
    }

    private static void same(Object expected, Object actual) {
        check(Objects.equals(expected, actual), "expected " + expected + ", got " + actual);
    }

    private interface Doing {
        void run() throws Exception;
    }

    private static void refused(Class<? extends Throwable> kind, Doing doing) throws Exception {
        try {
            doing.run();
        } catch (Exception error) {
            Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
            check(kind.isInstance(cause), "expected " + kind.getSimpleName() + ", got " + cause);
            return;
        }
        throw new AssertionError("not refused: expected " + kind.getSimpleName());
    }

    private static void eventually(Callable<Boolean> condition, String what) throws Exception {
        long deadline = System.nanoTime() + Duration.ofSeconds(30).toNanos();
        while (!condition.call()) {
            check(System.nanoTime() < deadline, "never: " + what);
            Thread.sleep(50);
        }
    }

    private void create(int partitions) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 3))).all().get();
        eventually(() -> {
            try {
                return describe(topic).partitions().stream().allMatch(p -> p.isr().size() == 3);
            } catch (ExecutionException notYet) {
                return false;
            }
        }, "topic " + topic);
    }

    private TopicDescription describe(String name) throws Exception {
        return admin.describeTopics(List.of(name)).allTopicNames().get().get(name);
    }

    private KafkaProducer<String, String> producer(Object... settings) {
        Map<String, Object> config = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "acks", "all"));
        for (int i = 0; i < settings.length; i += 2) {
            config.put((String) settings[i], settings[i + 1]);
        }
        return new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
    }

    private KafkaConsumer<String, String> consumer(Object... settings) {
        Map<String, Object> config = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "group.id", topic,
            "auto.offset.reset", "earliest", "enable.auto.commit", "false"));
        for (int i = 0; i < settings.length; i += 2) {
            config.put((String) settings[i], settings[i + 1]);
        }
        return new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer());
    }

    private void send(KafkaProducer<String, String> producer, int from, int to) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (int i = from; i < to; i++) {
            sent.add(producer.send(new ProducerRecord<>(topic, "k" + i, "v" + i)));
        }
        for (Future<RecordMetadata> each : sent) {
            each.get(30, TimeUnit.SECONDS);
        }
    }

    private static List<String> read(KafkaConsumer<String, String> consumer, int count) {
        List<String> values = new ArrayList<>();
        long deadline = System.nanoTime() + Duration.ofSeconds(30).toNanos();
        while (values.size() < count) {
            check(System.nanoTime() < deadline, values.size() + " of " + count + " records");
            consumer.poll(Duration.ofMillis(200)).forEach(record -> values.add(record.value()));
        }
        return values;
    }

    private static Set<String> numbered(int from, int to) {
        return IntStream.range(from, to).mapToObj(i -> "v" + i).collect(Collectors.toSet());
    }

    private List<TopicPartition> parts(int count) {
        return IntStream.range(0, count).mapToObj(i -> new TopicPartition(topic, i)).toList();
    }

    // ---- scenarios --------------------------------------------------------------------------------------------------

    private void produce() throws Exception {
        create(3);
        int at = 0;
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            try (KafkaProducer<String, String> producer = producer("enable.idempotence", true, "compression.type", codec)) {
                send(producer, at, at + 200);
                at += 200;
            }
        }
        try (KafkaProducer<String, String> producer = producer()) {
            ProducerRecord<String, String> odd = new ProducerRecord<>(topic, 0, 1_700_000_000_000L, (String) null, (String) null);
            odd.headers().add("a", new byte[] {1}).add("a", null);
            RecordMetadata where = producer.send(odd).get();
            same(1_700_000_000_000L, where.timestamp());
            refused(RecordTooLargeException.class,
                () -> producer.send(new ProducerRecord<>(topic, "x".repeat(2_000_000))).get());
            try (KafkaConsumer<String, String> consumer = consumer()) {
                consumer.assign(List.of(new TopicPartition(topic, 0)));
                consumer.seek(new TopicPartition(topic, 0), where.offset());
                ConsumerRecord<String, String> record = null;
                while (record == null) {
                    for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(200))) {
                        record = each;
                    }
                }
                check(record.key() == null && record.value() == null && record.headers().toArray().length == 2, record);
                check(record.leaderEpoch().isPresent(), "leader epoch");
            }
        }
        try (KafkaConsumer<String, String> consumer = consumer()) {
            consumer.assign(parts(3));
            consumer.seekToBeginning(parts(3));
            same(numbered(0, at), read(consumer, at + 1).stream().filter(Objects::nonNull).collect(Collectors.toSet()));
            Map<TopicPartition, Long> ends = consumer.endOffsets(parts(3));
            same((long) at + 1, ends.values().stream().mapToLong(Long::longValue).sum());
            check(consumer.offsetsForTimes(Map.of(new TopicPartition(topic, 1), 0L)).get(new TopicPartition(topic, 1)).offset() == 0, "by time");
            same(OptionalLong.of(0), consumer.currentLag(new TopicPartition(topic, 0)));
        }
    }

    private void transactions() throws Exception {
        create(2);
        String out = topic + "-out";
        admin.createTopics(List.of(new NewTopic(out, 2, (short) 3))).all().get();
        try (KafkaProducer<String, String> source = producer()) {
            send(source, 0, 50);
        }
        KafkaProducer<String, String> first = producer("transactional.id", topic);
        first.initTransactions();
        first.beginTransaction();
        first.send(new ProducerRecord<>(out, "aborted")).get();
        first.abortTransaction();
        try (KafkaConsumer<String, String> consumer = consumer("isolation.level", "read_committed")) {
            consumer.subscribe(List.of(topic));
            List<String> values = read(consumer, 50);
            first.beginTransaction();
            for (String value : values) {
                first.send(new ProducerRecord<>(out, value, value));
            }
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            for (TopicPartition part : consumer.assignment()) {
                offsets.put(part, new OffsetAndMetadata(consumer.position(part), "m"));
            }
            first.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            first.commitTransaction();
            eventually(() -> consumer.committed(offsets.keySet()).equals(offsets), "offsets of the transaction");
        }
        KafkaProducer<String, String> second = producer("transactional.id", topic);
        second.initTransactions();
        first.beginTransaction();
        refused(KafkaException.class, () -> {
            first.send(new ProducerRecord<>(out, "zombie")).get();
            first.commitTransaction();
        });
        first.close(Duration.ZERO);
        second.beginTransaction();
        second.send(new ProducerRecord<>(out, "open")).get();
        try (KafkaConsumer<String, String> consumer = consumer("isolation.level", "read_committed", "group.id", topic + "-2")) {
            consumer.subscribe(List.of(out));
            same(numbered(0, 50), new HashSet<>(read(consumer, 50)));
            check(consumer.poll(Duration.ofMillis(500)).isEmpty(), "nothing uncommitted is seen");
        }
        admin.fenceProducers(List.of(topic)).all().get();
        refused(KafkaException.class, second::commitTransaction);
        second.close(Duration.ZERO);
    }

    private void groups(String protocol) throws Exception {
        create(4);
        try (KafkaProducer<String, String> producer = producer()) {
            send(producer, 0, 400);
            try (KafkaConsumer<String, String> one = consumer("group.protocol", protocol)) {
                one.subscribe(List.of(topic));
                same(numbered(0, 400), new HashSet<>(read(one, 400)));
                one.commitSync();
                KafkaConsumer<String, String> two = consumer("group.protocol", protocol);
                two.subscribe(List.of(topic));
                eventually(() -> {
                    one.poll(Duration.ofMillis(100));
                    two.poll(Duration.ofMillis(100));
                    return one.assignment().size() == 2 && two.assignment().size() == 2;
                }, "two partitions for each");
                ConsumerGroupDescription group = admin.describeConsumerGroups(List.of(topic)).all().get().get(topic);
                same(2, group.members().size());
                same(protocol.equals("consumer") ? GroupType.CONSUMER : GroupType.CLASSIC, group.type());
                send(producer, 400, 600);
                Set<String> seen = new HashSet<>();
                eventually(() -> {
                    one.poll(Duration.ofMillis(50)).forEach(record -> seen.add(record.value()));
                    two.poll(Duration.ofMillis(50)).forEach(record -> seen.add(record.value()));
                    return seen.equals(numbered(400, 600));
                }, "the rest");
                two.commitSync();
                two.close();
                eventually(() -> {
                    one.poll(Duration.ofMillis(100));
                    return one.assignment().size() == 4;
                }, "all four again");
                one.commitSync();
            }
            try (KafkaConsumer<String, String> pattern = consumer("group.protocol", protocol, "group.id", topic + "-p")) {
                pattern.subscribe(java.util.regex.Pattern.compile(topic + ".*"));
                same(600, read(pattern, 600).size());
            }
        }
    }

    private void staticMembers() throws Exception {
        create(2);
        KafkaConsumer<String, String> first = consumer("group.instance.id", "one");
        first.subscribe(List.of(topic));
        eventually(() -> {
            first.poll(Duration.ofMillis(100));
            return first.assignment().size() == 2;
        }, "assignment");
        first.close();
        same(1, admin.describeConsumerGroups(List.of(topic)).all().get().get(topic).members().size());
        try (KafkaConsumer<String, String> again = consumer("group.instance.id", "one")) {
            again.subscribe(List.of(topic));
            eventually(() -> {
                again.poll(Duration.ofMillis(100));
                return again.assignment().size() == 2;
            }, "assignment again");
        }
        admin.removeMembersFromConsumerGroup(topic,
            new RemoveMembersFromConsumerGroupOptions(List.of(new MemberToRemove("one")))).all().get();
        eventually(() -> admin.describeConsumerGroups(List.of(topic)).all().get().get(topic).members().isEmpty(), "removed");
    }

    private void cooperative() throws Exception {
        create(4);
        Set<TopicPartition> lost = new HashSet<>();
        ConsumerRebalanceListener listener = new ConsumerRebalanceListener() {
            @Override public void onPartitionsRevoked(Collection<TopicPartition> parts) {
                lost.addAll(parts);
            }

            @Override public void onPartitionsAssigned(Collection<TopicPartition> parts) {
            }
        };
        String assignor = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor";
        try (KafkaConsumer<String, String> one = consumer("partition.assignment.strategy", assignor);
             KafkaConsumer<String, String> two = consumer("partition.assignment.strategy", assignor)) {
            one.subscribe(List.of(topic), listener);
            eventually(() -> {
                one.poll(Duration.ofMillis(100));
                return one.assignment().size() == 4;
            }, "all for one");
            two.subscribe(List.of(topic));
            eventually(() -> {
                one.poll(Duration.ofMillis(100));
                two.poll(Duration.ofMillis(100));
                return one.assignment().size() == 2 && two.assignment().size() == 2;
            }, "two for each");
            same(2, lost.size());
        }
    }

    private void topics() throws Exception {
        DescribeClusterResult cluster = admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true));
        same(3, cluster.nodes().get().size());
        check(cluster.controller().get() != null && cluster.clusterId().get().length() == 22, "cluster");
        NewTopic wanted = new NewTopic(topic, Map.of(0, List.of(1, 2, 3), 1, List.of(2, 3, 1))).configs(Map.of("retention.ms", "77777"));
        CreateTopicsResult dry = admin.createTopics(List.of(wanted), new CreateTopicsOptions().validateOnly(true));
        same(2, dry.numPartitions(topic).get());
        check(!admin.listTopics().names().get().contains(topic), "validate only");
        CreateTopicsResult made = admin.createTopics(List.of(wanted));
        same("77777", made.config(topic).get().get("retention.ms").value());
        same(3, made.replicationFactor(topic).get());
        Uuid id = made.topicId(topic).get();
        eventually(() -> admin.listTopics().names().get().contains(topic), "listed");
        refused(TopicExistsException.class, () -> admin.createTopics(List.of(wanted)).all().get());
        refused(InvalidReplicationFactorException.class,
            () -> admin.createTopics(List.of(new NewTopic(topic + "-x", 1, (short) 9))).all().get());
        refused(InvalidTopicException.class,
            () -> admin.createTopics(List.of(new NewTopic("not a name", 1, (short) 1))).all().get());
        TopicDescription found = admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds().get().get(id);
        same(topic, found.name());
        same(List.of(1, 2, 3), found.partitions().get(0).replicas().stream().map(Node::id).toList());
        TopicDescription paged = admin.describeTopics(TopicCollection.ofTopicNames(List.of(topic)),
            new DescribeTopicsOptions().partitionSizeLimitPerResponse(1)).allTopicNames().get().get(topic);
        same(2, paged.partitions().size());
        refused(UnknownTopicOrPartitionException.class, () -> describe(topic + "-none"));
        admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3, List.of(List.of(3, 1, 2))))).all().get();
        eventually(() -> describe(topic).partitions().size() == 3, "three partitions");
        refused(InvalidPartitionsException.class,
            () -> admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(2))).all().get());
        admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all().get();
        eventually(() -> !admin.listTopics().names().get().contains(topic), "deleted");
        refused(UnknownTopicIdException.class, () -> admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all().get());
    }

    private void configs() throws Exception {
        create(1);
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(
            new AlterConfigOp(new ConfigEntry("retention.ms", "5555"), AlterConfigOp.OpType.SET),
            new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"), AlterConfigOp.OpType.APPEND)))).all().get();
        Callable<Config> current = () -> admin.describeConfigs(List.of(resource),
            new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true)).all().get().get(resource);
        eventually(() -> current.call().get("retention.ms").value().equals("5555"), "set");
        same("delete,compact", current.call().get("cleanup.policy").value());
        same(ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, current.call().get("retention.ms").source());
        check(!current.call().get("retention.ms").documentation().isEmpty(), "documentation");
        admin.incrementalAlterConfigs(Map.of(resource, List.of(
            new AlterConfigOp(new ConfigEntry("retention.ms", null), AlterConfigOp.OpType.DELETE),
            new AlterConfigOp(new ConfigEntry("cleanup.policy", "delete"), AlterConfigOp.OpType.SUBTRACT)))).all().get();
        eventually(() -> current.call().get("retention.ms").isDefault(), "deleted");
        refused(InvalidConfigurationException.class, () -> admin.incrementalAlterConfigs(Map.of(resource, List.of(
            new AlterConfigOp(new ConfigEntry("retention.ms", "soon"), AlterConfigOp.OpType.SET)))).all().get());
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "2");
        Config ofBroker = admin.describeConfigs(List.of(broker)).all().get().get(broker);
        same("2", ofBroker.get("broker.id").value());
        check(ofBroker.get("zookeeper.connect").isReadOnly(), "read only");
        check(ofBroker.entries().size() > 200, "settings of a broker");
    }

    private void offsets() throws Exception {
        create(1);
        TopicPartition part = new TopicPartition(topic, 0);
        try (KafkaProducer<String, String> producer = producer()) {
            for (long at : List.of(1000L, 9000L, 5000L)) {
                producer.send(new ProducerRecord<>(topic, 0, at, "k", "v")).get();
            }
        }
        Map<OffsetSpec, Long> wanted = new LinkedHashMap<>();
        wanted.put(OffsetSpec.earliest(), 0L);
        wanted.put(OffsetSpec.latest(), 3L);
        wanted.put(OffsetSpec.maxTimestamp(), 1L);
        wanted.put(OffsetSpec.forTimestamp(2000L), 1L);
        wanted.put(OffsetSpec.forTimestamp(99_000L), -1L);
        wanted.put(OffsetSpec.earliestLocal(), 0L);
        wanted.put(OffsetSpec.latestTiered(), -1L);
        for (Map.Entry<OffsetSpec, Long> each : wanted.entrySet()) {
            ListOffsetsResult.ListOffsetsResultInfo found = admin.listOffsets(Map.of(part, each.getKey())).partitionResult(part).get();
            check(found.offset() == each.getValue(), each.getKey().getClass().getSimpleName() + ": " + found);
        }
        same(2L, admin.deleteRecords(Map.of(part, RecordsToDelete.beforeOffset(2))).lowWatermarks().get(part).get().lowWatermark());
        same(2L, admin.listOffsets(Map.of(part, OffsetSpec.earliest())).partitionResult(part).get().offset());
        refused(org.apache.kafka.common.errors.OffsetOutOfRangeException.class,
            () -> admin.deleteRecords(Map.of(part, RecordsToDelete.beforeOffset(99))).all().get());
    }

    private void partitions() throws Exception {
        create(2);
        try (KafkaProducer<String, String> producer = producer()) {
            send(producer, 0, 100);
        }
        TopicPartition part = new TopicPartition(topic, 0);
        List<Integer> turned = new ArrayList<>(describe(topic).partitions().get(0).replicas().stream().map(Node::id).toList());
        Collections.rotate(turned, 1);
        admin.alterPartitionReassignments(Map.of(part, Optional.of(new NewPartitionReassignment(turned)))).all().get();
        eventually(() -> admin.listPartitionReassignments().reassignments().get().isEmpty(), "reassigned");
        eventually(() -> describe(topic).partitions().get(0).replicas().stream().map(Node::id).toList().equals(turned), "turned");
        refused(NoReassignmentInProgressException.class,
            () -> admin.alterPartitionReassignments(Map.of(part, Optional.empty())).all().get());
        refused(InvalidReplicaAssignmentException.class, () -> admin.alterPartitionReassignments(
            Map.of(part, Optional.of(new NewPartitionReassignment(List.of(1, 77))))).all().get());
        admin.electLeaders(ElectionType.PREFERRED, Set.of(part)).partitions().get();
        eventually(() -> describe(topic).partitions().get(0).leader().id() == turned.get(0), "preferred leader");
        refused(ElectionNotNeededException.class, () -> {
            Optional<Throwable> error = admin.electLeaders(ElectionType.PREFERRED, Set.of(part)).partitions().get().get(part);
            throw (Exception) error.orElseThrow();
        });
        Map<Integer, Map<String, LogDirDescription>> dirs = admin.describeLogDirs(List.of(1, 2, 3)).allDescriptions().get();
        for (Map<String, LogDirDescription> each : dirs.values()) {
            LogDirDescription dir = each.values().iterator().next();
            check(dir.replicaInfos().get(part).size() > 0 && dir.totalBytes().orElse(0) > 0, dir);
        }
        TopicPartitionReplica replica = new TopicPartitionReplica(topic, 0, 1);
        String here = dirs.get(1).keySet().iterator().next();
        admin.alterReplicaLogDirs(Map.of(replica, here)).all().get();
        same(here, admin.describeReplicaLogDirs(List.of(replica)).all().get().get(replica).getCurrentReplicaLogDir());
        refused(LogDirNotFoundException.class, () -> admin.alterReplicaLogDirs(Map.of(replica, "/no/such")).all().get());
    }

    private void groupAdministration() throws Exception {
        create(2);
        try (KafkaProducer<String, String> producer = producer()) {
            send(producer, 0, 20);
        }
        TopicPartition part = new TopicPartition(topic, 0);
        try (KafkaConsumer<String, String> consumer = consumer()) {
            consumer.subscribe(List.of(topic));
            read(consumer, 20);
            consumer.commitSync();
            refused(GroupNotEmptyException.class, () -> admin.deleteConsumerGroups(List.of(topic)).all().get());
            refused(UnknownMemberIdException.class,
                () -> admin.alterConsumerGroupOffsets(topic, Map.of(part, new OffsetAndMetadata(1))).all().get());
        }
        check(admin.listConsumerGroups(new ListConsumerGroupsOptions().inGroupStates(Set.of(GroupState.EMPTY))).all().get()
            .stream().anyMatch(listing -> listing.groupId().equals(topic)), "listed as empty");
        same(2, admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata().get().size());
        admin.alterConsumerGroupOffsets(topic, Map.of(part, new OffsetAndMetadata(1))).all().get();
        same(1L, admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata().get().get(part).offset());
        admin.deleteConsumerGroupOffsets(topic, Set.of(part)).all().get();
        same(1, admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata().get().size());
        admin.deleteConsumerGroups(List.of(topic)).all().get();
        refused(GroupIdNotFoundException.class, () -> admin.deleteConsumerGroups(List.of(topic)).all().get());
    }

    private void hanging() throws Exception {
        create(1);
        TopicPartition part = new TopicPartition(topic, 0);
        KafkaProducer<String, String> producer = producer("transactional.id", topic);
        producer.initTransactions();
        producer.beginTransaction();
        producer.send(new ProducerRecord<>(topic, "open")).get();
        check(admin.listTransactions(new ListTransactionsOptions().filterStates(Set.of(TransactionState.ONGOING))).all().get()
            .stream().anyMatch(listing -> listing.transactionalId().equals(topic)), "listed");
        TransactionDescription description = admin.describeTransactions(List.of(topic)).all().get().get(topic);
        same(Set.of(part), description.topicPartitions());
        ProducerState state = admin.describeProducers(List.of(part)).partitionResult(part).get().activeProducers().get(0);
        same(description.producerId(), state.producerId());
        same(OptionalLong.of(0), state.currentTransactionStartOffset());
        admin.abortTransaction(new AbortTransactionSpec(part, state.producerId(), (short) state.producerEpoch(),
            state.coordinatorEpoch().orElse(0))).all().get();
        state = admin.describeProducers(List.of(part)).partitionResult(part).get().activeProducers().get(0);
        same(OptionalLong.empty(), state.currentTransactionStartOffset());
        admin.fenceProducers(List.of(topic)).all().get();
        producer.close(Duration.ZERO);
    }
}
