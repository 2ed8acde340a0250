import java.nio.file.Files;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;

/** {@code Unsupported BOOTSTRAP SCENARIO TOPIC}: groups of Kafka 4 that brokers here do not have. Prints OK if the client says so. */
public final class Unsupported {
    public static void main(String[] args) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", args[0]))) {
            admin.createTopics(List.of(new NewTopic(args[2], 1, (short) 3))).all().get();
        }
        Throwable error = args[1].equals("share") ? share(args[0], args[2]) : streams(args[0], args[2]);
        for (Throwable each = error; each != null; each = each.getCause()) {
            if (each instanceof UnsupportedVersionException && each.getMessage().toLowerCase(Locale.ROOT).contains(args[1] + " group")) {
                System.out.println("OK");
                System.exit(0);
            }
        }
        throw new AssertionError("not refused as unsupported", error);
    }

    private static Throwable share(String bootstrap, String topic) {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "group.id", topic);
        try (var consumer = new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            for (int turn = 0; turn < 100; turn++) {
                consumer.poll(Duration.ofMillis(200));
            }
            return null;
        } catch (UnsupportedVersionException error) {
            return error;
        }
    }

    private static Throwable streams(String bootstrap, String topic) throws Exception {
        Properties settings = new Properties();
        settings.put("application.id", topic);
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.protocol", "streams");
        settings.put("state.dir", Files.createTempDirectory("streams").toString());
        settings.put("default.key.serde", Serdes.StringSerde.class);
        settings.put("default.value.serde", Serdes.StringSerde.class);
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(topic).to(topic + "-out");
        CompletableFuture<Throwable> failure = new CompletableFuture<>();
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings)) {
            streams.setUncaughtExceptionHandler(error -> {
                failure.complete(error);
                return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
            });
            streams.start();
            return failure.get(60, TimeUnit.SECONDS);
        }
    }
}
