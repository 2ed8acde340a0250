// Talks to a server with Apache ZooKeeper's own client; prints one line per step. Run as `java -cp … Conversation.java host:port`.

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.zookeeper.AddWatchMode;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Op;
import org.apache.zookeeper.OpResult;
import org.apache.zookeeper.WatchedEvent;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.ACL;
import org.apache.zookeeper.data.ClientInfo;
import org.apache.zookeeper.data.Id;
import org.apache.zookeeper.data.Stat;

public class Conversation {
    static final List<ACL> OPEN = ZooDefs.Ids.OPEN_ACL_UNSAFE;
    static final LinkedBlockingQueue<WatchedEvent> EVENTS = new LinkedBlockingQueue<>();

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static ZooKeeper connect(String address) throws Exception {
        CountDownLatch connected = new CountDownLatch(1);
        ZooKeeper zk = new ZooKeeper(address, 10000, event -> {
            if (event.getState() == Watcher.Event.KeeperState.SyncConnected && event.getType() == Watcher.Event.EventType.None) {
                connected.countDown();
            } else if (event.getType() != Watcher.Event.EventType.None) {
                EVENTS.add(event);
            }
        });
        if (!connected.await(20, TimeUnit.SECONDS)) {
            throw new IllegalStateException("no connection");
        }
        return zk;
    }

    static void say(Object... parts) {
        StringBuilder line = new StringBuilder();
        for (Object part : parts) {
            line.append(part).append(' ');
        }
        System.out.println(line.toString().trim());
    }

    static void event() throws Exception {
        WatchedEvent event = EVENTS.poll(10, TimeUnit.SECONDS);
        say("event", event == null ? "none" : event.getType() + " " + event.getPath());
    }

    static String code(KeeperException e) {
        return e.code().toString();
    }

    public static void main(String[] args) throws Exception {
        ZooKeeper zk = connect(args[0]);
        say("create", zk.create("/j", bytes("one"), OPEN, CreateMode.PERSISTENT));
        Stat stat = new Stat();
        say("create2", zk.create("/j/s-", bytes("x"), OPEN, CreateMode.EPHEMERAL_SEQUENTIAL, stat), stat.getVersion(),
            stat.getEphemeralOwner() == zk.getSessionId());
        say("container", zk.create("/j/c", null, OPEN, CreateMode.CONTAINER));
        say("ttl", zk.create("/j/t", null, OPEN, CreateMode.PERSISTENT_WITH_TTL, new Stat(), 60000));
        say("data", new String(zk.getData("/j", true, stat), StandardCharsets.UTF_8), stat.getNumChildren(), stat.getCversion());
        say("set", zk.setData("/j", bytes("two"), 0).getVersion());
        event();
        try {
            zk.setData("/j", bytes("three"), 0);
        } catch (KeeperException e) {
            say("refused", code(e), e.getPath());
        }
        zk.addWatch("/j", EVENTS::add, AddWatchMode.PERSISTENT_RECURSIVE);
        zk.create("/j/d", bytes(""), OPEN, CreateMode.PERSISTENT);
        event();
        zk.create("/j/d/e", bytes(""), OPEN, CreateMode.PERSISTENT);
        event();
        zk.removeAllWatches("/j", Watcher.WatcherType.Any, false);
        event();
        List<Op> ops = new ArrayList<>();
        ops.add(Op.check("/j", 1));
        ops.add(Op.create("/j/m", bytes("m"), OPEN, CreateMode.PERSISTENT));
        ops.add(Op.setData("/j/m", bytes("n"), 0));
        ops.add(Op.delete("/j/d/e", -1));
        for (OpResult result : zk.multi(ops)) {
            say("multi", result.getClass().getSimpleName());
        }
        ops.set(0, Op.check("/j", 9));
        try {
            zk.multi(ops);
        } catch (KeeperException e) {
            say("multi refused", code(e));
            for (OpResult result : e.getResults()) {
                say("result", ((OpResult.ErrorResult) result).getErr());
            }
        }
        for (OpResult result : zk.multi(new ArrayList<>(List.of(Op.getData("/j/m"), Op.getChildren("/none"))))) {
            say("read", result.getClass().getSimpleName());
        }
        say("number", zk.getAllChildrenNumber("/j"), zk.getEphemerals("/j").size());
        zk.addAuthInfo("digest", bytes("joe:secret"));
        java.util.TreeSet<String> identities = new java.util.TreeSet<>();
        for (ClientInfo info : zk.whoAmI()) {
            identities.add(info.getAuthScheme() + "=" + info.getUser());
        }
        say("who", identities);
        zk.create("/j/p", bytes(""), new ArrayList<>(List.of(new ACL(ZooDefs.Perms.ALL, new Id("auth", "")))), CreateMode.PERSISTENT);
        say("acl", zk.getACL("/j/p", stat).get(0).getId().getId());
        ZooKeeper other = connect(args[0]);
        try {
            other.getData("/j/p", false, stat);
        } catch (KeeperException e) {
            say("other", code(e));
        }
        other.exists("/j/s-0000000000", true);
        zk.close();
        event();
        CountDownLatch synced = new CountDownLatch(1);
        other.sync("/", (rc, path, context) -> {
            say("synced", rc, path);
            synced.countDown();
        }, null);
        synced.await(10, TimeUnit.SECONDS);
        say("left", new java.util.TreeSet<>(other.getChildren("/j", false)));
        other.close();
    }
}
