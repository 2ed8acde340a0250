import java.time.Duration;
import java.util.*;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;

/**
 * Kafka Streams with exactly-once: a repartition, a state store with its changelog, a restart in the middle.
 *
 * Arguments: bootstrap, topic, group protocol (classic or streams). With a fourth one, the program is an instance that counts
 * until it is killed, and the caller makes the topics.
 */
public final class WordCount {
    public static void main(String[] args) throws Exception {
        String bootstrap = args[0];
        String topic = args[1];
        String protocol = args[2];
        if (args.length > 3) {
            KafkaStreams instance = new KafkaStreams(topology(topic), settings(bootstrap, topic, protocol));
            instance.setUncaughtExceptionHandler(error -> {
                error.printStackTrace();
                return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
            });
            instance.start();
            Thread.sleep(Long.MAX_VALUE);
        }
        try (Admin admin = Admin.create(Map.<String, Object>of("bootstrap.servers", bootstrap))) {
            admin.createTopics(List.of(new NewTopic(topic, 3, (short) 3), new NewTopic(topic + "-out", 3, (short) 3))).all().get();
        }
        Map<String, Long> wanted = new TreeMap<>();
        for (int round = 0; round < 2; round++) {
            write(bootstrap, topic, round, wanted);
            AtomicReference<Throwable> failure = new AtomicReference<>();
            KafkaStreams streams = new KafkaStreams(topology(topic), settings(bootstrap, topic, protocol));
            streams.setUncaughtExceptionHandler(error -> {
                failure.set(error);
                return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
            });
            streams.cleanUp(); // the second round restores its store from the changelog
            streams.start();
            Map<String, Long> found = read(bootstrap, topic + "-out", wanted, failure);
            streams.close(Duration.ofSeconds(20));
            if (failure.get() != null) {
                throw new IllegalStateException(failure.get());
            }
            if (!found.equals(wanted)) {
                throw new AssertionError("wanted " + wanted + ", found " + found);
            }
        }
        System.out.println("OK");
        System.exit(0);
    }

    private static void write(String bootstrap, String topic, int round, Map<String, Long> wanted) {
        Map<String, Object> config = Map.of("bootstrap.servers", bootstrap, "acks", "all");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            for (int i = 0; i < 500; i++) {
                String word = "word" + (i * 7 + round) % 23;
                producer.send(new ProducerRecord<>(topic, "k" + i, word + " the"));
                wanted.merge(word, 1L, Long::sum);
                wanted.merge("the", 1L, Long::sum);
            }
        }
    }

    private static Topology topology(String topic) {
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(topic)
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word)
            .count(Materialized.as("counts"))
            .toStream()
            .to(topic + "-out", Produced.with(Serdes.String(), Serdes.Long()));
        return builder.build();
    }

    private static Properties settings(String bootstrap, String topic, String protocol) {
        Properties settings = new Properties();
        settings.put("application.id", topic + "-app");
        settings.put("bootstrap.servers", bootstrap);
        if (!protocol.equals("classic")) { // Kafka 3.9 does not know the setting
            settings.put("group.protocol", protocol);
        }
        settings.put("default.key.serde", Serdes.StringSerde.class);
        settings.put("default.value.serde", Serdes.StringSerde.class);
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("replication.factor", 3);
        settings.put("commit.interval.ms", 200);
        settings.put("num.stream.threads", 2);
        settings.put("state.dir", System.getProperty("java.io.tmpdir"));
        settings.put("consumer.auto.offset.reset", "earliest");
        return settings;
    }

    private static Map<String, Long> read(String bootstrap, String topic, Map<String, Long> wanted, AtomicReference<Throwable> failure) {
        Map<String, Object> config = Map.of("bootstrap.servers", bootstrap, "group.id", topic + UUID.randomUUID(),
            "auto.offset.reset", "earliest", "isolation.level", "read_committed");
        Map<String, Long> found = new TreeMap<>();
        try (KafkaConsumer<String, Long> consumer = new KafkaConsumer<>(config, new StringDeserializer(), new LongDeserializer())) {
            consumer.subscribe(List.of(topic));
            long deadline = System.nanoTime() + Duration.ofSeconds(60).toNanos();
            while (!found.equals(wanted) && System.nanoTime() < deadline && failure.get() == null) {
                consumer.poll(Duration.ofMillis(200)).forEach(record -> found.put(record.key(), record.value()));
            }
        }
        return found;
    }
}
