import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/** A share consumer that walks through every type of acknowledgement: `ShareClient BOOTSTRAP TOPIC explicit|implicit`. */
public class ShareClient {
    static final int COUNT = 5;

    public static void main(String[] args) {
        if (args[2].equals("explicit")) {
            explicit(args[0], args[1]);
        } else {
            implicit(args[0], args[1]);
        }
        System.out.println("OK");
    }

    static KafkaShareConsumer<String, String> consumer(String bootstrap, String topic, String group, String mode) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("group.id", group);
        properties.put("share.acknowledgement.mode", mode);
        properties.put("key.deserializer", StringDeserializer.class.getName());
        properties.put("value.deserializer", StringDeserializer.class.getName());
        KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(properties);
        consumer.subscribe(Set.of(topic));
        return consumer;
    }

    /** Job 0 and 4 are accepted, 1 is released, 2 rejected, and 3 renewed: 1 comes again with the count 2, 3 as it was. */
    static void explicit(String bootstrap, String topic) {
        try (KafkaShareConsumer<String, String> consumer = consumer(bootstrap, topic, "explicit", "explicit")) {
            Map<String, AcknowledgeType> types = Map.of(
                "job-0", AcknowledgeType.ACCEPT, "job-1", AcknowledgeType.RELEASE, "job-2", AcknowledgeType.REJECT,
                "job-3", AcknowledgeType.RENEW, "job-4", AcknowledgeType.ACCEPT);
            Map<String, Integer> first = new TreeMap<>();
            Map<String, Integer> later = new TreeMap<>();
            long until = System.currentTimeMillis() + 60_000;
            while ((first.size() < COUNT || later.size() < 2) && System.currentTimeMillis() < until) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500))) {
                    int count = record.deliveryCount().orElseThrow();
                    if (first.putIfAbsent(record.value(), count) == null) {
                        consumer.acknowledge(record, types.get(record.value()));
                    } else {
                        later.put(record.value(), count);
                        consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                    }
                }
                check(consumer.commitSync());
            }
            expect(first, Map.of("job-0", 1, "job-1", 1, "job-2", 1, "job-3", 1, "job-4", 1));
            expect(later, Map.of("job-1", 2, "job-3", 1));
            expectNothing(consumer);
        }
    }

    /** The next poll accepts; what the last poll before `close` returned is released unless it is committed. */
    static void implicit(String bootstrap, String topic) {
        try (KafkaShareConsumer<String, String> consumer = consumer(bootstrap, topic, "implicit", "implicit")) {
            List<String> values = new ArrayList<>();
            long until = System.currentTimeMillis() + 60_000;
            while (values.size() < COUNT && System.currentTimeMillis() < until) {
                consumer.poll(Duration.ofMillis(500)).forEach(record -> values.add(record.value()));
            }
            values.sort(null);
            expect(values, List.of("job-0", "job-1", "job-2", "job-3", "job-4"));
            check(consumer.commitSync());
        }
        try (KafkaShareConsumer<String, String> consumer = consumer(bootstrap, topic, "implicit", "implicit")) {
            expectNothing(consumer);
        }
    }

    static void check(Map<TopicIdPartition, Optional<KafkaException>> results) {
        Map<TopicIdPartition, Optional<KafkaException>> failed = new HashMap<>(results);
        failed.values().removeIf(Optional::isEmpty);
        expect(failed, Map.of());
    }

    static void expectNothing(KafkaShareConsumer<String, String> consumer) {
        long until = System.currentTimeMillis() + 4_000;
        while (System.currentTimeMillis() < until) {
            expect(consumer.poll(Duration.ofMillis(500)).count(), 0);
        }
    }

    static void expect(Object found, Object wanted) {
        if (!found.equals(wanted)) {
            throw new AssertionError(found + ", not " + wanted);
        }
    }
}
