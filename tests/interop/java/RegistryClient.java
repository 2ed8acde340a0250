// Confluent's Java client of a schema registry, and Flink's Avro serializer over it. The classes are those that Flink ships:
// Confluent's own artifacts are not on Maven Central.

import java.io.ByteArrayInputStream;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.Map;
import org.apache.flink.avro.shaded.org.apache.avro.Schema;
import org.apache.flink.avro.shaded.org.apache.avro.generic.GenericData;
import org.apache.flink.avro.shaded.org.apache.avro.generic.GenericDatumReader;
import org.apache.flink.avro.shaded.org.apache.avro.generic.GenericDatumWriter;
import org.apache.flink.avro.shaded.org.apache.avro.generic.GenericRecord;
import org.apache.flink.avro.shaded.org.apache.avro.io.BinaryEncoder;
import org.apache.flink.avro.shaded.org.apache.avro.io.DecoderFactory;
import org.apache.flink.avro.shaded.org.apache.avro.io.EncoderFactory;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.avro.AvroSchema;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.CachedSchemaRegistryClient;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.exceptions.RestClientException;
import org.apache.flink.formats.avro.registry.confluent.ConfluentSchemaRegistryCoder;

public class RegistryClient {
    static final String USER = "{\"type\":\"record\",\"name\":\"User\",\"namespace\":\"shop\",\"fields\":[{\"name\":\"name\",\"type\":\"string\"}]}";
    static final String NARROW = "{\"type\":\"record\",\"name\":\"User\",\"namespace\":\"shop\",\"fields\":["
        + "{\"name\":\"name\",\"type\":\"string\"},{\"name\":\"age\",\"type\":\"int\"}]}";
    static final String WIDE = "{\"type\":\"record\",\"name\":\"User\",\"namespace\":\"shop\",\"fields\":["
        + "{\"name\":\"name\",\"type\":\"string\"},{\"name\":\"age\",\"type\":\"int\",\"default\":7}]}";

    public static void main(String[] args) throws Exception {
        CachedSchemaRegistryClient client = new CachedSchemaRegistryClient(List.of(args[0]), 100);
        registers(client);
        refuses(client);
        writesAndReads(new CachedSchemaRegistryClient(List.of(args[0]), 100), client);
        deletes(client);
        System.out.println("OK");
    }

    static void registers(CachedSchemaRegistryClient client) throws Exception {
        int id = client.register("java-value", new AvroSchema(USER));
        expect(id, client.register("java-value", new AvroSchema(USER)));
        expect(id, client.getId("java-value", new AvroSchema(USER)));
        expect(1, client.getVersion("java-value", new AvroSchema(USER)));
        expect(USER, client.getSchemaById(id).canonicalString());
        expect(List.of(1), client.getAllVersions("java-value"));
        expect(id, client.getLatestSchemaMetadata("java-value").getId());
        expect(true, client.getAllSubjects().contains("java-value"));
        expect(true, client.getAllSubjectsById(id).contains("java-value"));
        expect("FULL", client.updateCompatibility("java-value", "FULL"));
        expect("FULL", client.getCompatibility("java-value"));
        expect("BACKWARD", client.updateCompatibility("java-value", "BACKWARD"));
    }

    static void refuses(CachedSchemaRegistryClient client) throws Exception {
        expect(false, client.testCompatibility("java-value", new AvroSchema(NARROW)));
        expect(true, client.testCompatibility("java-value", new AvroSchema(WIDE)));
        try {
            client.register("java-value", new AvroSchema(NARROW));
            throw new AssertionError("an incompatible schema was taken");
        } catch (RestClientException refused) {
            expect(409, refused.getStatus());
        }
        try {
            client.getLatestSchemaMetadata("nobody-value");
            throw new AssertionError("a subject that is not there was found");
        } catch (RestClientException refused) {
            expect(40401, refused.getErrorCode());
        }
        try {
            client.getSchemaById(1_000_000);
            throw new AssertionError("an id that is not there was found");
        } catch (RestClientException refused) {
            expect(40403, refused.getErrorCode());
        }
    }

    /** As Flink's Kafka connector does: magic byte, id, and Avro's binary form; read with a newer schema. */
    static void writesAndReads(CachedSchemaRegistryClient ours, CachedSchemaRegistryClient theirs) throws Exception {
        Schema written = new Schema.Parser().parse(USER);
        java.io.ByteArrayOutputStream out = new java.io.ByteArrayOutputStream();
        new ConfluentSchemaRegistryCoder("java-value", ours).writeSchema(written, out);
        GenericRecord user = new GenericData.Record(written);
        user.put("name", "ann");
        BinaryEncoder encoder = EncoderFactory.get().binaryEncoder(out, null);
        new GenericDatumWriter<GenericRecord>(written).write(user, encoder);
        encoder.flush();
        byte[] data = out.toByteArray();
        expect(theirs.getId("java-value", new AvroSchema(USER)), ByteBuffer.wrap(data, 1, 4).getInt());
        theirs.register("java-value", new AvroSchema(WIDE));
        ByteArrayInputStream in = new ByteArrayInputStream(data);
        Schema found = new ConfluentSchemaRegistryCoder(theirs).readSchema(in);
        Schema wide = new Schema.Parser().parse(WIDE);
        GenericRecord read = new GenericDatumReader<GenericRecord>(found, wide).read(null, DecoderFactory.get().binaryDecoder(in, null));
        expect("ann", read.get("name").toString());
        expect(7, read.get("age"));
    }

    static void deletes(CachedSchemaRegistryClient client) throws Exception {
        expect(2, client.deleteSchemaVersion("java-value", "2"));
        expect(List.of(1), client.deleteSubject("java-value"));
        expect(List.of(1, 2), client.deleteSubject(Map.of(), "java-value", true));
        expect(false, client.getAllSubjects().contains("java-value"));
    }

    static void expect(Object wanted, Object found) {
        if (!wanted.equals(found)) throw new AssertionError("expected " + wanted + ", found " + found);
    }
}
