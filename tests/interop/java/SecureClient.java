import java.io.FileInputStream;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.AuthenticationException;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** With each properties file: make a topic, write to it, read it. One line for each: what became of it. */
public class SecureClient {
    public static void main(String[] args) throws Exception {
        for (String file : args) {
            Properties settings = new Properties();
            try (FileInputStream in = new FileInputStream(file)) {
                settings.load(in);
            }
            settings.put("default.api.timeout.ms", "20000");
            settings.put("request.timeout.ms", "10000");
            settings.put("max.block.ms", "20000");
            String name = file.replaceAll(".*/|\\.properties$", "");
            System.out.println(name + " " + outcome(name, settings));
        }
    }

    private static String outcome(String name, Properties settings) throws Exception {
        try {
            use("java-" + name, settings);
            return "OK";
        } catch (ExecutionException error) {
            return refusal(error.getCause());
        } catch (RuntimeException error) {
            return refusal(error);
        }
    }

    private static String refusal(Throwable error) throws Exception {
        if (error instanceof AuthenticationException || error instanceof AuthorizationException) {
            return "REFUSED " + error.getClass().getSimpleName();
        }
        return "FAILED " + error;
    }

    private static void use(String topic, Properties settings) throws Exception {
        try (Admin admin = Admin.create(settings)) {
            admin.createTopics(List.of(new NewTopic(topic, 2, (short) 2))).all().get();
        }
        Properties producing = new Properties();
        producing.putAll(settings);
        producing.putAll(Map.of("acks", "all"));
        try (var producer = new KafkaProducer<>(producing, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < 100; number++) {
                producer.send(new ProducerRecord<>(topic, "k" + number, "v".repeat(20_000))).get();
            }
        }
        Properties consuming = new Properties();
        consuming.putAll(settings);
        consuming.putAll(Map.of("group.id", topic, "auto.offset.reset", "earliest"));
        try (var consumer = new KafkaConsumer<>(consuming, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            int got = 0;
            long end = System.currentTimeMillis() + 30_000;
            while (got < 100 && System.currentTimeMillis() < end) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(500));
                got += records.count();
            }
            if (got != 100) {
                throw new IllegalStateException("got " + got + " of 100 records");
            }
        }
    }
}
