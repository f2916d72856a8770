"""Every knob, with its flag, default, meaning and bound.

The other files in configs/ change a few of the defaults and keep the others.

The defaults are the settings of the MOON paper (Li et al. 2021, arXiv:2103.16257,
section 4.1), on a data set that needs no download. `python launch.py --help` prints
this list; the knobs are declared in moon_jax/catalog/.

  --config.algorithm=moon                       algorithm by which the clients train;
                                                one of fedavg, fedprox, scaffold,
                                                fedsam, mofedsam, moon, sa_moon,
                                                dco_moon, moon_l2, fedntd, feddecorr,
                                                fedlc, fedrs, feddyn, fednova, fedexp,
                                                fedproc, fedproto, fedper, fedbabu,
                                                fedbn, ditto, fedrep, apfl, pfedme,
                                                per_fedavg, fedala, median,
                                                trimmed_mean, krum,
                                                decentralized_fedavg,
                                                decentralized_moon, solo, centralized
  --config.model=mlp                            network; one of mlp, moon_cnn,
                                                tutorial_cnn, dco_cnn, cnn_transformer,
                                                resnet18, resnet50, mobilenet_v2,
                                                cnn_1d, cnn_3d, gru, transformer
  --config.seed=0                               seed of the random draws; in [0,
                                                2147483647]
  --config.initial_weights=                     file of the first weights, .safetensors
                                                or .npz; '' draws them
  --config.frozen_layers=                       layers that do not train, with commas,
                                                or body; '' is none
  --config.num_clients=10                       number of clients; with natural the data
                                                decide; at least 1
  --config.participation=1.0                    fraction of clients in each round (0.25
                                                of 10 is 3); a fraction of the clients
                                                in (0, 1], not a count
  --config.num_rounds=100                       number of communication rounds; at least
                                                1
  --config.local_epochs=10                      passes of a client over its own data in
                                                each round; at least 1
  --config.local_epochs_min=0                   lowest number of epochs that a client
                                                draws; 0: no draw; at least 0
  --config.fine_tune_epochs=0                   epochs of each client's fine-tuning
                                                before its own test; 0 is none; at least
                                                0
  --config.batch_size=64                        number of examples in a local step; at
                                                least 1
  --config.drop_last=False                      whether a partial last batch is left
                                                out, not masked
  --config.client_weight=samples                weights of clients: examples, or equal;
                                                one of samples, uniform
  --config.batch_norm=averaged                  running statistics; local: clients keep
                                                them; one of averaged, local
  --config.eval_every_rounds=1                  number of rounds between tests; at least
                                                1
  --config.metrics=                             further metrics of each test, with
                                                commas between; '' is none; some of
                                                macro_f1, balanced_accuracy, auc, ece,
                                                top5, nll, worst_class, each once, with
                                                commas between
  --config.best_by=accuracy                     what chooses the best round: accuracy,
                                                loss, or one of metrics; one of
                                                accuracy, loss, macro_f1,
                                                balanced_accuracy, auc, ece, top5, nll,
                                                worst_class
  --config.keep_best=none                       split by which a best round is chosen
                                                whose models are kept; one of none,
                                                validation, test
  --config.checkpoint_every_rounds=auto         number of rounds between saves; auto:
                                                10, or five seconds of short rounds; at
                                                least 1
  --config.on_nonfinite=stop                    reaction to NaN and infinity; one of
                                                stop, skip_client
  --config.logger=tensorboard                   loggers: tensorboard, wandb, mlflow; ''
                                                is none; names of tensorboard, wandb and
                                                mlflow, each once, with commas between
  --config.data.source=digits                   source of the images; one of digits,
                                                tfds, npz, imagefolder, table,
                                                audiofolder, torchvision, folder,
                                                records, hdf5, sqlite, huggingface,
                                                leaf, pfllib
  --config.data.name=                           name of a data set in TFDS or
                                                torchvision
  --config.data.dir=                            folder of TFDS; '' is $TFDS_DATA_DIR or
                                                the default
  --config.data.path=                           file or folder of the data
  --config.data.test_path=                      file of the test examples
  --config.data.trust_pickles=False             whether pickled files may run their code
  --config.data.client=                         feature or column of the user; '' is
                                                none
  --config.data.image=                          name of the images; '' is pixels, image,
                                                ...
  --config.data.label=                          name of the labels; '' is label, ...
  --config.data.range=                          numbers of black and white; '' is 0,255
                                                for integers, 0,1 for floats; two
                                                numbers LOW,HIGH, the first smaller, or
                                                ''
  --config.data.axes=                           axes of an example: D table, TC signals,
                                                T words, HWC, DHWC, ...; '': its
                                                shape's; '' or one of D, T, TC, CT, HW,
                                                HWC, CHW, DHW, DHWC, CDHW
  --config.data.normalize=auto                  what numbers are normalised by; auto:
                                                pictures become grey levels; one of
                                                auto, none, per_channel, per_feature
  --config.data.tokenizer=none                  what divides texts into words; none: no
                                                texts; one of none, characters,
                                                wordpiece
  --config.data.vocabulary_size=2000            most words and pieces of words of the
                                                vocabulary; in [3, 1048576]
  --config.data.text_length=auto                words kept of each text; auto: all, at
                                                most 512; at least 1
  --config.data.text=                           column of the texts; '' is text,
                                                sentence, ...
  --config.data.seconds=auto                    length of each sound, in seconds; auto:
                                                that of the longest in training; above 0
  --config.data.mel_bands=40                    bands of a spectrogram; at least 1
  --config.data.stereo=refused                  what is taken of two channels; one of
                                                refused, mean, left, right
  --config.data.features=                       columns of numbers, with commas between,
                                                or *; '' is the column of images
  --config.data.train_split=                    name of the training split; '' finds it
  --config.data.test_split=                     name of the test split; '' finds it
  --config.data.categories=                     columns of words or codes, with commas
                                                between
  --config.data.test_fraction=0.0               fraction of each class, or user, drawn
                                                for the test; 0: none; in [0, 1)
  --config.data.test_seed=0                     seed of the draw of test examples; in
                                                [0, 2147483647]
  --config.data.image_size=0                    side of resized images in pixels; 0
                                                resizes nothing; at least 0
  --config.data.limit=0                         upper limit of examples per split; 0
                                                takes all; at least 0
  --config.data.validation=0.0                  fraction of each class kept to choose
                                                the best round; in [0, 1)
  --config.data.local_test=0.0                  fraction of each client's examples kept
                                                for its own test; a share of the
                                                examples in [0, 1)
  --config.partition.name=dirichlet             rule that deals out the examples; one of
                                                iid, dirichlet, shards, quantity, noise,
                                                natural
  --config.partition.beta=0.5                   concentration of the Dirichlet shares;
                                                small is skewed; above 0
  --config.partition.balance=True               whether a client with a fair share of
                                                examples gets no more
  --config.partition.classes_per_client=2       number of classes of a client; at least
                                                1
  --config.partition.noise_sigma=0.1            deviation of the last client's noise, of
                                                pixels in [0, 1]; in [0, 1]
  --config.partition.min_size=10                lowest number of examples; natural
                                                leaves out smaller users; at least 1
  --config.partition.seed=auto                  seed of the partition and of held-out
                                                examples; auto: the run's seed; in [0,
                                                2147483647]
  --config.augmentation.name=none               augmentation of training images; one of
                                                none, flip, crop_flip, time_flip, jitter
  --config.augmentation.padding=reflect         pixels beyond the border; zero: the
                                                number 0; one of reflect, zero
  --config.augmentation.jitter_sigma=0.05       deviation of the noise; 1 is what the
                                                numbers are divided by; at least 0
  --config.optimizer.name=sgd                   optimizer of local training, new in each
                                                round; one of sgd, adam, adamw
  --config.optimizer.learning_rate=0.01         learning rate in the first round; above
                                                0
  --config.optimizer.body_learning_rate=auto    first learning rate of the layers before
                                                the head; auto: the head's; in (0,
                                                1000000.0]
  --config.optimizer.momentum=0.9               momentum of sgd; in [0, 1)
  --config.optimizer.nesterov=False             whether sgd's momentum is Nesterov's
  --config.optimizer.weight_decay=1e-05         weight decay; decoupled with adamw; at
                                                least 0
  --config.optimizer.clip_norm=0.0              largest norm of a client's gradient in a
                                                step; 0: no limit; at least 0
  --config.optimizer.schedule=constant          schedule of the learning rate over
                                                rounds; one of constant, cosine,
                                                exponential, step
  --config.optimizer.decay=0.1                  factor of the learning rate after
                                                decay_every rounds; in (0, 1]
  --config.optimizer.decay_every=50             number of rounds for one decay; at least
                                                1
  --config.server_optimizer.name=sgd            optimizer of the server's step; one of
                                                sgd, adam, yogi
  --config.server_optimizer.learning_rate=auto  server's learning rate; auto: 1 (sgd) or
                                                0.01; above 0
  --config.server_optimizer.momentum=0.0        momentum of the server's sgd; above 0 is
                                                FedAvgM; in [0, 1)
  --config.availability.name=uniform            availability of the clients; one of
                                                uniform, cyclic, by_data, trace
  --config.availability.groups=2                number of groups, which take turns; at
                                                least 1
  --config.availability.path=                   file of the rounds in which clients are
                                                present
  --config.stragglers.fraction=0.0              fraction of a round's clients that miss
                                                the deadline; in [0, 1)
  --config.stragglers.send=nothing              what stragglers send; partial:
                                                unfinished models; one of nothing,
                                                partial
  --config.attack.name=none                     attack of some of the clients; one of
                                                none, label_flip, sign_flip, gaussian,
                                                alie, ipm
  --config.attack.fraction=0.1                  fraction of all clients that attack; in
                                                [0, 1)
  --config.attack.scale=1.0                     factor of the reversed update; above 0
  --config.attack.sigma=1.0                     standard deviation of the noise sent;
                                                above 0
  --config.attack.epsilon=0.5                   factor of the reversed mean update;
                                                above 0
  --config.topology.name=ring                   graph of neighbours; one of ring, grid,
                                                complete, erdos_renyi
  --config.topology.degree=2                    number of neighbours of each client;
                                                even, at least 2
  --config.topology.edge_probability=0.5        probability of a link; in (0, 1]
  --config.fedprox.mu=0.01                      weight of the proximal term; at least 0
  --config.fedsam.rho=0.1                       length of the move uphill before the
                                                gradient; at least 0
  --config.fedsam.adaptive=False                whether larger weights move further
                                                (FedASAM)
  --config.fedsam.xi=0.2                        number added to the size of a weight, if
                                                adaptive; at least 0
  --config.mofedsam.rho=0.1                     length of the move uphill before the
                                                gradient; at least 0
  --config.mofedsam.adaptive=False              whether larger weights move further
                                                (FedASAM)
  --config.mofedsam.xi=0.2                      number added to the size of a weight, if
                                                adaptive; at least 0
  --config.mofedsam.beta=0.1                    weight of the client's own gradient; in
                                                (0, 1]
  --config.moon.mu=5.0                          weight of the contrastive term; at least
                                                0
  --config.moon.tau=0.5                         temperature of the contrastive term;
                                                above 0
  --config.moon.negative=none                   negative of a client without a previous
                                                model; one of none, global, init
  --config.moon.similarity_on=representation    output that is compared; one of
                                                representation, features
  --config.moon.num_previous=1                  number of a client's last models that
                                                are negatives; in [1, 100]
  --config.moon.frozen_mode=evaluation          mode of the frozen networks; one of
                                                evaluation, training
  --config.sa_moon.mu=5.0                       weight of the contrastive term; at least
                                                0
  --config.sa_moon.initial_temperature=1.0      temperature of a client's first step;
                                                above 0
  --config.sa_moon.min_temperature=0.001        lowest temperature of the annealing;
                                                above 0
  --config.sa_moon.sigma=0.005                  cooling rate of the temperature; in [0,
                                                1]
  --config.sa_moon.scope=client                 owner of the temperature: client or
                                                server; one of client, server
  --config.sa_moon.acceptance=steps             losses compared: of two steps, or at two
                                                temperatures; one of steps, temperatures
  --config.dco_moon.mu=1.0                      factor of the whole loss, and so of a
                                                step; at least 0
  --config.dco_moon.tau=0.5                     temperature of the contrastive term;
                                                above 0
  --config.dco_moon.theta=0.1                   relative deviation above which a client
                                                strays; above 0
  --config.dco_moon.normalise=False             whether both weights are divided by mu
                                                (above 0)
  --config.dco_moon.initial=plain               value of mu_t in the first round: 0
                                                (plain) or mu; one of plain, mu
  --config.moon_l2.mu=0.1                       weight of the distance of
                                                representations; at least 0
  --config.moon_l2.squared=False                whether the distance is squared
  --config.fedntd.beta=1.0                      weight of the distillation; at least 0
  --config.fedntd.tau=1.0                       temperature of the distillation; above 0
  --config.feddecorr.beta=0.1                   weight of the penalty on correlations;
                                                at least 0
  --config.feddecorr.scale=code                 scale of the penalty: of the code, or of
                                                the paper; one of code, equation
  --config.fedlc.tau=1.0                        weight of the margins of rare classes;
                                                at least 0
  --config.fedlc.least_count=0.0                lowest count of a class; 0 leaves
                                                missing classes out; at least 0
  --config.fedlc.true_class=True                whether the true class is in the
                                                denominator
  --config.fedrs.alpha=0.5                      factor of the logits of missing classes;
                                                in [0, 1]
  --config.fedrs.graded=False                   whether factors follow class shares (the
                                                authors' code)
  --config.feddyn.alpha=0.01                    weight of the dynamic regularisation;
                                                above 0
  --config.feddyn.by_size=False                 whether alpha is divided by the relative
                                                size of a client
  --config.feddyn.evaluate=server               tested model: the server's or the
                                                clients' mean; one of server, mean
  --config.fednova.mu=0.0                       weight of the pull to the received
                                                model; at least 0
  --config.fednova.tau_eff=norm                 mean effective steps, or mean number of
                                                steps; one of norm, steps
  --config.fedexp.eps=0.001                     guard of the server's step against a
                                                division by 0; above 0
  --config.fedexp.eps_decay=1.0                 factor of eps after each round; in (0,
                                                1]
  --config.fedexp.evaluate=last                 model that is tested: the last, or the
                                                mean of two; one of last, mean_of_two
  --config.fedproc.tau=1.0                      temperature of the prototype term; above
                                                0
  --config.fedproc.rise=100.0                   number of rounds until only cross
                                                entropy is left; above 0
  --config.fedproto.lam=1.0                     weight of the distance to the prototype;
                                                at least 0
  --config.fedproto.distance=mean               squared distance: mean or sum over
                                                dimensions; one of mean, sum
  --config.fedper.layers=                       layers that stay with a client; '' is
                                                the output layer
  --config.ditto.lam=1.0                        weight of the pull to the received
                                                model; at least 0
  --config.ditto.epochs=auto                    epochs of the personal model; auto:
                                                local_epochs; at least 1
  --config.ditto.learning_rate=auto             personal model's learning rate; auto:
                                                the global one; above 0
  --config.fedrep.head_epochs=10                epochs of the head, before local_epochs
                                                of the body; at least 1
  --config.apfl.alpha=0.5                       first share of a client's own model; in
                                                [0, 1]
  --config.apfl.adaptive=False                  whether each client learns its alpha
  --config.pfedme.lam=15.0                      weight of the pull between theta and w;
                                                at least 0
  --config.pfedme.inner_steps=5                 number of steps of theta on a batch; at
                                                least 1
  --config.pfedme.inner_learning_rate=0.09      learning rate of theta; above 0
  --config.pfedme.beta=1.0                      length of the server's step; above 1
                                                goes beyond; at least 0
  --config.pfedme.warm=False                    whether theta goes on from the batch
                                                before
  --config.per_fedavg.alpha=0.01                learning rate of the inner step; at
                                                least 0
  --config.per_fedavg.hessian=none              second derivatives: none (FO) or a
                                                difference (HF); one of none, difference
  --config.per_fedavg.delta=0.001               length of the difference; above 0
  --config.fedala.layers=                       layers that are blended; '' is the
                                                output layer
  --config.fedala.eta=1.0                       learning rate of the blend; at least 0
  --config.fedala.example_share=0.8             fraction of the examples that the blend
                                                learns from; in (0, 1]
  --config.fedala.threshold=0.1                 deviation of losses at which the first
                                                learning ends; at least 0
  --config.fedala.start_epochs=20               number of epochs of the first learning,
                                                at most; at least 1
  --config.fedala.evaluate=blend                client's tested model: next start, or
                                                last trained; one of blend, trained
  --config.trimmed_mean.trim=0.1                fraction cut at each end; in [0, 0.5)
  --config.krum.num_byzantine=1                 number of Byzantine clients; at least 0
  --config.krum.num_selected=1                  number of models averaged; above 1 is
                                                multi-Krum; at least 1
  --config.mlp.width=128                        number of units of each hidden layer; at
                                                least 1
  --config.mlp.representation=64                number of units of the representation;
                                                at least 1
  --config.moon_cnn.head=mlp                    projection head; none: features are
                                                used; one of mlp, none
  --config.moon_cnn.head_width=84               number of units of the head's hidden
                                                layer; at least 1
  --config.moon_cnn.representation=256          number of outputs of the projection
                                                head; at least 1
  --config.moon_cnn.norm=none                   normalisation after each convolution;
                                                one of none, batch, group
  --config.dco_cnn.norm=none                    normalisation after each convolution;
                                                one of none, batch, group
  --config.cnn_transformer.layers=6             number of layers of the encoder; in [1,
                                                100]
  --config.cnn_transformer.heads=8              number of attention heads in every
                                                layer; a divisor of 256
  --config.cnn_transformer.feedforward=2048     number of hidden units of each layer; at
                                                least 1
  --config.cnn_transformer.dropout=0.1          rate of dropout, convolutions included;
                                                in [0, 1)
  --config.resnet.head=mlp                      projection head; none: features are
                                                used; one of mlp, none
  --config.resnet.head_width=auto               units of the head's hidden layer; auto:
                                                its input's; at least 1
  --config.resnet.representation=256            number of outputs of the projection
                                                head; at least 1
  --config.resnet.design=small                  layers for small images, or
                                                torchvision's, for ImageNet's; one of
                                                small, torchvision
  --config.resnet.norm=batch                    normalisation; group: in 2 groups of
                                                channels; one of batch, group
  --config.mobilenet_v2.design=small            layers for small images, or
                                                torchvision's, for ImageNet's; one of
                                                small, torchvision
  --config.cnn_1d.channels=32                   channels of the first convolution; the
                                                second: twice; at least 1
  --config.cnn_1d.kernel=5                      number of steps that a convolution sees;
                                                odd, at least 1
  --config.cnn_1d.width=128                     number of units of the head's hidden
                                                layer and before it; at least 1
  --config.cnn_1d.representation=64             number of outputs of the projection
                                                head; at least 1
  --config.cnn_1d.norm=none                     normalisation after each convolution;
                                                one of none, batch, group
  --config.cnn_3d.channels=16                   channels of the first of three
                                                convolutions; at least 1
  --config.cnn_3d.width=128                     number of units of the head's hidden
                                                layer and before it; at least 1
  --config.cnn_3d.representation=64             number of outputs of the projection
                                                head; at least 1
  --config.cnn_3d.norm=none                     normalisation after each convolution;
                                                one of none, batch, group
  --config.gru.embedding=32                     numbers that stand for a word; signals
                                                have none; at least 1
  --config.gru.width=128                        number of units of the head's hidden
                                                layer and before it; at least 1
  --config.gru.representation=64                number of outputs of the projection
                                                head; at least 1
  --config.transformer.layers=2                 number of layers of the encoder; in [1,
                                                100]
  --config.transformer.heads=4                  number of attention heads, a divisor of
                                                width; at least 1
  --config.transformer.width=64                 numbers that stand for a word; at least
                                                1
  --config.transformer.feedforward=128          number of hidden units of each layer; at
                                                least 1
  --config.transformer.dropout=0.1              rate of dropout; in [0, 1)
  --config.transformer.representation=64        number of outputs of the projection
                                                head; at least 1
  --config.execution.devices=auto               number of devices of each process; at
                                                least 1
  --config.execution.lanes=auto                 number of clients trained side by side;
                                                at least 1
  --config.execution.convolution=auto           form of the convolutions; all agree up
                                                to rounding; one of auto, library,
                                                banded, fused, direct, winograd
  --config.execution.cache_mib=2048             MiB for frozen representations; 0 is
                                                none; at least 0
  --config.execution.client_store=auto          place of clients' memories between
                                                rounds; auto is the device up to 256 MiB
                                                in all, or if a round has a quarter of
                                                all clients; one of auto, device, disk
  --config.execution.dtype=float32              number type in which networks compute;
                                                one of float32, bfloat16
  --config.execution.matmul_precision=default   precision of matmuls; one of default,
                                                high, highest
  --config.execution.deterministic=False        whether a GPU gives the same bits in
                                                every run (slower)
  --config.execution.compiler_options=          options of XLA's compiler, for GPUs; ''
                                                is none; NAME=VALUE,..., each name once,
                                                or ''
  --config.execution.compile_cache=auto         private folder of programs; auto: the
                                                user's; off: none
  --config.execution.profile=False              whether a profile of the second round is
                                                recorded
"""

from moon_jax.config import defaults


def get_config():
  """Returns the defaults as an ml_collections.ConfigDict, which you may change."""
  return defaults()
