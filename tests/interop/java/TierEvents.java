// Kafka's own records of __remote_log_metadata. Without arguments: prints, for a fixed list of events, the partition of the
// topic, the bytes (hex) and the text, one a line. With "read": reads bytes (hex) from its input and prints the text of each.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.metadata.storage.RemoteLogMetadataTopicPartitioner;
import org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteMetadata;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteState;

public class TierEvents {
    public static void main(String[] args) throws Exception {
        RemoteLogMetadataSerde serde = new RemoteLogMetadataSerde();
        if (args.length > 0) {
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                System.out.println(serde.deserialize(HexFormat.of().parseHex(line.trim())));
            }
            return;
        }
        RemoteLogMetadataTopicPartitioner partitioner = new RemoteLogMetadataTopicPartitioner(50);
        for (int partition : List.of(0, 1, 17, 100000)) {
            TopicIdPartition tp = new TopicIdPartition(Uuid.fromString("8fvGHbP_QHWc0ULVvGVn3A"), new TopicPartition("orders", partition));
            RemoteLogSegmentId id = new RemoteLogSegmentId(tp, Uuid.fromString("kFUh0UqfTXKEhhB5mXzdZw"));
            RemoteLogSegmentMetadata started = new RemoteLogSegmentMetadata(
                id, 100, 1999, 1700000000123L, 3, 1700000001456L, 1048576, Map.of(0, 100L, 2, 150L, 7, 1800L));
            print(serde, partitioner, tp, started);
            print(serde, partitioner, tp, started.createWithUpdates(update(id, RemoteLogSegmentState.COPY_SEGMENT_FINISHED, new byte[] {1, 2, 3})));
            for (RemoteLogSegmentState state : RemoteLogSegmentState.values()) {
                if (state != RemoteLogSegmentState.COPY_SEGMENT_STARTED) {
                    print(serde, partitioner, tp, update(id, state, null));
                    print(serde, partitioner, tp, update(id, state, new byte[] {9}));
                }
            }
            for (RemotePartitionDeleteState state : RemotePartitionDeleteState.values()) {
                print(serde, partitioner, tp, new RemotePartitionDeleteMetadata(tp, state, 1700000003000L, 2));
            }
        }
    }

    private static RemoteLogSegmentMetadataUpdate update(RemoteLogSegmentId id, RemoteLogSegmentState state, byte[] custom) {
        return new RemoteLogSegmentMetadataUpdate(id, 1700000002789L, Optional.ofNullable(custom).map(CustomMetadata::new), state, 4);
    }

    private static void print(
        RemoteLogMetadataSerde serde, RemoteLogMetadataTopicPartitioner partitioner, TopicIdPartition tp, RemoteLogMetadata event
    ) {
        System.out.println(partitioner.metadataPartition(tp) + "\t" + HexFormat.of().formatHex(serde.serialize(event)) + "\t" + event);
    }
}
